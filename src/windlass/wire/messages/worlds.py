"""What leads and nodes say to each other about a world of ranks, be it an attempt of a job or one of calls.

The number of an attempt is the number of its world.
"""

from __future__ import annotations

from windlass.wire.message import Count, Message, Port
from windlass.wire.messages.forkserver import ClusterNode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from windlass.wire.results import Outcome

# -- orders of the lead ------------------------------------------------------------------------


class EndWorld(Message, kind="stop"):
    """End the ranks of a world; with `now` at once, else with a signal, and after the grace by force."""

    world: Count
    now: bool
    signal: Count
    within_s: float | None = None  # bounds the grace


class OpenStore(Message, kind="open_store"):
    """Open a store of a framework, in which the ranks of one world meet, or those of all worlds.

    Where that is a cluster, this node's part of it.
    """

    number: Count
    framework: str
    address: str
    port: Port  # 0: any
    preload: Sequence[str] = ()  # what the store is made of
    cluster: ClusterNode | None = None


class CloseStore(Message, kind="close_store"):
    """Close a store: another one takes its place."""

    number: Count


# -- what nodes tell ---------------------------------------------------------------------------


class RankEnded(Message, kind="outcome"):
    """How a rank ended, as it says itself, or, with `exited`, as its process did."""

    outcome: Outcome
    exited: bool = True
    given: str = ""  # the call that it was given last
    answered: str = ""  # the one that it answered last


class WorldCleared(Message, kind="cleared"):
    """No rank of a world is left on the node."""

    world: Count
    is_last: bool = False  # nor of any other world


class StoreReady(Message, kind="store"):
    """The port of a store; 0 where there can be none."""

    number: Count
    port: Port
    address: str = ""  # empty: the one that it was told
    error: str = ""  # why a cluster's node could not start
    note: str = ""  # what people should know of it
    dashboard: str = ""  # address and port of a cluster's page, where it is not at its usual port


class StoreGone(Message, kind="store_gone"):
    """The process of a store is gone."""

    number: Count
