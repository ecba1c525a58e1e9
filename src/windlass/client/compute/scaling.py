"""How many nodes a compute has: the lead counts them, the engine starts and ends them, and both must agree.

Several clients may ask at the same time. The lead's word counts, since it hears them one after another: a
client that has told the engine a number looks once more whether it is still the lead's, and if not, tells the
engine that one. So the client that reaches the engine last brings what the lead says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from windlass.errors import EngineError

_MAX_TURNS = 100

AskLead = Callable[[int | None], int]  # how many it has; a number says how many from now on
Grow = Callable[[Sequence[int], int], None]  # which nodes are new, and how many there are in all


def scale_to(ask_lead: AskLead, grow: Grow, num_nodes: int) -> tuple[int, int]:
    """Ask for so many nodes; how many there were and how many there are: others may have asked since."""
    before = ask_lead(num_nodes)
    new: Sequence[int] = range(before, num_nodes)
    for _ in range(_MAX_TURNS):
        grow(new, num_nodes)
        told = ask_lead(None)
        if told == num_nodes:
            return before, told
        new, num_nodes = (), told  # the client that asked for more starts those
    raise EngineError(
        f"others change the number of nodes all the time: it is {told} now",
        hint="windlass compute ls shows it",
    )
