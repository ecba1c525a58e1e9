"""Between an agent and its fork server: requests, with pipes attached, one way; lines of JSON the other."""

from __future__ import annotations

from windlass.wire.message import Count, Direction, Message, Port

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import ClassVar

    from windlass.spec.node_resources import NodeSize


class ForkRequest(Message):
    """What an agent asks for."""

    tag: ClassVar[str] = "kind"


class PreloadModules(ForkRequest, kind="preload"):
    """Import more modules."""

    modules: Sequence[str]


class CallRankSetup(Message):
    """What a rank that takes calls is told when it starts."""

    framework: str
    keep: bool  # it stays after a call
    start: str
    cwd: str
    root: str  # of the project
    paths: Sequence[str]
    spill: str = ""  # the folder for large results
    peer_wait_s: float = 0.0


class ForkRank(ForkRequest, kind="rank"):
    """Fork a rank; its two streams come with it and, where it takes calls, its channel."""

    framework: str
    rank: Count
    attempt: Count
    env: Mapping[str, str]
    forget: Sequence[str] = ()  # variables of the server's that are not the rank's
    plan: str = ""  # the path of its job's plan
    about: CallRankSetup | None = None  # of a rank that takes calls


class ClusterNode(Message):
    """One node's part of a cluster that a framework has on all nodes; node 0 opens it, others join.

    The lead says what they have in common, the node adds where it is.
    """

    size: NodeSize
    num_nodes: Count
    secret: str
    version: str = ""  # of the framework's library at the client
    pretends_gpus: bool = False
    joins: bool = False
    index: Count = 0
    own_address: str = ""  # empty: all nodes are on this machine
    folder: str = ""  # for sockets and files of its own
    cwd: str = ""
    paths: Sequence[str] = ()  # import paths
    env: Mapping[str, str] = {}  # of the job
    forget: Sequence[str] = ()  # variables of the fork server's that are not its own


class ForkStore(ForkRequest, kind="store"):
    """Fork a process that opens the store of a framework."""

    framework: str
    attempt: Count
    address: str
    port: Port
    cluster: ClusterNode | None = None


class GuardRanks(ForkRequest, kind="guard"):
    """End all processes when the lease lapses whose memory comes with this; see `agent.rank_lease`."""

    backstop_s: float  # after that, the kernel ends a fork server that did not


class ForkEvent(Message):
    """What the fork server tells."""

    tag: ClassVar[str] = "event"


class ModulesImported(ForkEvent, kind="ready"):
    """What was asked for is imported; `culprit` started threads, so that ranks are spawned."""

    modules: Sequence[str]
    missing: Mapping[str, str]
    num_threads: Count
    culprit: str


class ProcessStarted(ForkEvent, kind="started"):
    """A rank was forked."""

    rank: Count
    attempt: Count
    pid: Count


class StoreStarted(ForkEvent, kind="storing"):
    """The process of a store was forked."""

    attempt: Count
    pid: Count


class StoreOpened(ForkEvent, kind="store"):
    """The port of a store; 0 where there can be none."""

    attempt: Count
    port: Port
    address: str = ""
    error: str = ""
    note: str = ""
    dashboard: str = ""


class ProcessExited(ForkEvent, kind="exited"):
    """A child is gone; the code is negative for a signal."""

    pid: Count
    code: int


class ForkServerGone(ForkEvent, kind="gone"):
    """Said by the agent to itself: the fork server died, and all that it had forked."""


NODE_TO_FORK_SERVER = Direction(
    "node",
    "fork server",
    "Requests of an agent to its fork server: a length, then JSON.",
    *(PreloadModules, ForkRank, ForkStore, GuardRanks),
)
FORK_SERVER_TO_NODE = Direction(
    "fork server",
    "node",
    "What a fork server tells its agent, one line of JSON each.",
    *(ModulesImported, ProcessStarted, StoreStarted, StoreOpened, ProcessExited),
)
