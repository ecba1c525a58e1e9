"""Between an agent and its fork server: requests, with pipes attached, one way; lines of JSON the other."""

from __future__ import annotations

from windlass.wire.message import Count, Direction, Message, Port

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import ClassVar


class ForkRequest(Message):
    """What an agent asks for."""

    tag: ClassVar[str] = "kind"


class PreloadModules(ForkRequest, kind="preload"):
    """Import more modules."""

    modules: Sequence[str]


class ForkRank(ForkRequest, kind="rank"):
    """Fork a rank of a job; its two streams come with it."""

    framework: str
    rank: Count
    attempt: Count
    env: Mapping[str, str]
    plan: str  # the path of the job's plan
    forget: Sequence[str]  # variables of the server's that are not the rank's


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


class ForkCallRank(ForkRequest, kind="callee"):
    """Fork a rank that takes calls; its two streams and its channel come with it."""

    framework: str
    rank: Count
    attempt: Count
    env: Mapping[str, str]
    about: CallRankSetup
    forget: Sequence[str]


class ForkStore(ForkRequest, kind="store"):
    """Fork a process that opens the store of a framework."""

    framework: str
    attempt: Count
    address: str
    port: Port


class ForkEvent(Message):
    """What the fork server tells."""

    tag: ClassVar[str] = "event"


class ModulesImported(ForkEvent, kind="ready"):
    """What was asked for is imported; `culprit` started threads, so that ranks are spawned."""

    modules: Sequence[str]
    import_s: float
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
    *(PreloadModules, ForkRank, ForkCallRank, ForkStore),
)
FORK_SERVER_TO_NODE = Direction(
    "fork server",
    "node",
    "What a fork server tells its agent, one line of JSON each.",
    *(ModulesImported, ProcessStarted, StoreStarted, StoreOpened, ProcessExited),
)
