"""Messages between an agent and its fork server.

Requests carry pipes with them. Events return as lines of JSON.
"""

from __future__ import annotations

from windlass.wire.message import Count, Direction, Message, Port

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import ClassVar

    from windlass.spec.node_resources import NodeSize


class ForkRequest(Message):
    """Base class of an agent's requests."""

    tag: ClassVar[str] = "kind"


class PreloadModules(ForkRequest, kind="preload"):
    """Import more modules."""

    modules: Sequence[str]


class CallRankSetup(Message):
    """Settings of a rank that takes calls, sent when it starts."""

    framework: str
    keep: bool  # the rank stays after a call
    start: str
    cwd: str
    root: str  # root of the project
    paths: Sequence[str]
    spill: str = ""  # the folder for large results
    peer_wait_s: float = 0.0


class ForkRank(ForkRequest, kind="rank"):
    """Fork a rank. Its output pipes are attached, and its channel if it takes calls."""

    framework: str
    rank: Count
    attempt: Count
    env: Mapping[str, str]
    forget: Sequence[str] = ()  # variables of the server that the rank must not inherit
    plan: str = ""  # the path of its job's plan
    about: CallRankSetup | None = None  # only for a rank that takes calls


class ClusterNode(Message):
    """One node's part of a cluster that a framework runs on all nodes.

    Node 0 opens it and the others join. The lead sets the shared fields, and the node adds its own.
    """

    size: NodeSize
    num_nodes: Count
    secret: str
    version: str = ""  # version of the framework's library on the client
    pretends_gpus: bool = False
    joins: bool = False
    index: Count = 0
    own_address: str = ""  # empty if all nodes are on this machine
    folder: str = ""  # folder for its own sockets and files
    cwd: str = ""
    paths: Sequence[str] = ()  # import paths
    env: Mapping[str, str] = {}  # the job's environment variables
    forget: Sequence[str] = ()  # fork server variables that it must not inherit


class ForkStore(ForkRequest, kind="store"):
    """Fork a process that opens a framework's store."""

    framework: str
    attempt: Count
    address: str
    port: Port
    cluster: ClusterNode | None = None


class GuardRanks(ForkRequest, kind="guard"):
    """End all processes when the attached lease expires. See `agent.rank_lease`."""

    backstop_s: float  # after this, the kernel ends a fork server that still runs


class ForkEvent(Message):
    """Base class of the fork server's events."""

    tag: ClassVar[str] = "event"


class ModulesImported(ForkEvent, kind="ready"):
    """The requested modules are imported.

    If `culprit` is set, that module started threads, so ranks are spawned instead of forked.
    """

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
    """A store's process was forked."""

    attempt: Count
    pid: Count


class StoreOpened(ForkEvent, kind="store"):
    """The port of a store, or 0 if it could not be opened."""

    attempt: Count
    port: Port
    address: str = ""
    error: str = ""
    note: str = ""
    dashboard: str = ""


class ProcessExited(ForkEvent, kind="exited"):
    """A child exited. The code is negative for a signal."""

    pid: Count
    code: int


class ForkServerGone(ForkEvent, kind="gone"):
    """The fork server and its children died. The agent sends this to itself."""


NODE_TO_FORK_SERVER = Direction(
    "node",
    "fork server",
    "Requests from an agent to its fork server: a length, then JSON.",
    *(PreloadModules, ForkRank, ForkStore, GuardRanks),
)
FORK_SERVER_TO_NODE = Direction(
    "fork server",
    "node",
    "Events from a fork server to its agent, one line of JSON each.",
    *(ModulesImported, ProcessStarted, StoreStarted, StoreOpened, ProcessExited),
)
