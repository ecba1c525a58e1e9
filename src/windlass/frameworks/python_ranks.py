"""Functions shared by frameworks whose ranks are Python processes with torchrun's variables.

The framework records refer to them. Code for a single framework belongs in that framework's file.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from windlass.plan.plan import Plan, RankRendezvous
    from windlass.wire.results import ErrorInfo

# Error texts of sockets, torch's store, gloo and NCCL when a peer has died.
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


def requested_procs(procs: int, _kind: str) -> int:
    """Return the requested number of ranks per node."""
    return procs


def make_env(plan: Plan, rank: int, *, attempt: int, rendezvous: RankRendezvous) -> dict[str, str]:
    """Return the variables that torchrun sets for a rank."""
    from windlass.plan.plan import make_rank_env

    return make_rank_env(plan, rank, attempt=attempt, rendezvous=rendezvous)


def make_env_without_rendezvous(
    plan: Plan, rank: int, *, attempt: int, rendezvous: RankRendezvous
) -> dict[str, str]:
    """Return torchrun's variables without the rendezvous address.

    A rank beside a framework's cluster opens its own torch store if it needs one.
    """
    from windlass import names

    env = make_env(plan, rank, attempt=attempt, rendezvous=rendezvous)
    for name in (names.MASTER_ADDR, names.MASTER_PORT, names.TORCHELASTIC_USE_AGENT_STORE):
        del env[name]
    return env


def find_version(library: str) -> str:
    """Return the version of a package installed here, or an empty string if it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return ""


def make_call_env(rendezvous: RankRendezvous) -> dict[str, str]:
    """Return the rendezvous variables of a call. The restart count is 0, as a call is not a restart."""
    from windlass import names
    from windlass.plan.plan import make_rendezvous_env

    return {**make_rendezvous_env(rendezvous), names.TORCHELASTIC_RESTART_COUNT: "0"}


def has_lost_peer(error: ErrorInfo) -> bool:
    """Return whether a rank failed only because it lost its connection to another rank."""
    text = error.message.lower()
    return any(sign in text for sign in _PEER_LOST)
