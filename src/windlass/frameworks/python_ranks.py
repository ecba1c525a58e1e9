"""What frameworks have in common whose ranks are Python processes under torchrun's variables.

Functions for their records. What only one framework does is in its own file.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from windlass.plan.plan import Meeting, Plan
    from windlass.wire.results import ErrorInfo

# What a rank prints when it was a peer that died: sockets, torch's store, gloo, NCCL.
_PEER_LOST = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "socket closed",
    "remote process exited",
    "connection refused",
    "failed to recv",
    "recvvalue failed",
    "recvbytes",
    "sendbytes",
)


def count_as_asked(procs: int, _kind: str) -> int:
    """As many ranks per node as were asked for."""
    return procs


def make_env(plan: Plan, rank: int, *, attempt: int, meeting: Meeting) -> dict[str, str]:
    """What torchrun sets."""
    from windlass.plan.plan import make_rank_env

    return make_rank_env(plan, rank, attempt=attempt, meeting=meeting)


def make_lone_env(plan: Plan, rank: int, *, attempt: int, meeting: Meeting) -> dict[str, str]:
    """The same but for torch's place to meet, which a rank beside a cluster opens where it wants one."""
    from windlass import names

    env = make_env(plan, rank, attempt=attempt, meeting=meeting)
    for name in (names.MASTER_ADDR, names.MASTER_PORT, names.TORCHELASTIC_USE_AGENT_STORE):
        del env[name]
    return env


def find_version(library: str) -> str:
    """Of a framework's package here; empty where it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return ""


def make_call_env(meeting: Meeting) -> dict[str, str]:
    """Where the ranks of a call meet. A call is not a restart of the one before."""
    from windlass import names
    from windlass.plan.plan import make_meeting_env

    return {**make_meeting_env(meeting), names.TORCHELASTIC_RESTART_COUNT: "0"}


def has_lost_peer(error: ErrorInfo) -> bool:
    """Whether a rank failed only because it lost its connection to another rank."""
    text = error.message.lower()
    return any(sign in text for sign in _PEER_LOST)
