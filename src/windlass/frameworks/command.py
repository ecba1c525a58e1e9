"""The command framework: runs a program once on each node, which may start its own ranks as torchrun does.

The program finds torchrun's flags in its environment variables, so a bare `torchrun train.py` on every node
forms one world. A function also runs once on each node, with the same variables.
"""

from __future__ import annotations

from windlass.frameworks import python_ranks
from windlass.frameworks.framework import Framework

TYPE_CHECKING = False
if TYPE_CHECKING:
    from windlass.plan.plan import Plan, RankRendezvous

_COMMAND = "command"  # the kind of work


def _count_procs(procs: int, kind: str) -> int:
    """Return 1, or the requested number if the work is a command."""
    return procs if kind == _COMMAND else 1


def _make_env(plan: Plan, rank: int, *, attempt: int, rendezvous: RankRendezvous) -> dict[str, str]:
    from windlass.plan.plan import make_command_env

    env = python_ranks.make_env(plan, rank, attempt=attempt, rendezvous=rendezvous)
    return {**env, **make_command_env(plan, rank, rendezvous)}


FRAMEWORK = Framework(
    name=_COMMAND,
    preload=(),
    takes_commands=True,
    gives_list=True,
    count_procs=_count_procs,
    make_env=_make_env,
    make_call_env=python_ranks.make_call_env,
    store=None,
    is_consequence=python_ranks.has_lost_peer,
)
