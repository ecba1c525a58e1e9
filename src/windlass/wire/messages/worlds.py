"""Messages between leads and nodes about a world of ranks, for an attempt of a job or for calls.

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
    """End the ranks of a world with a signal, then kill them after the grace period.

    With `now`, kill them immediately.
    """

    world: Count
    now: bool
    signal: Count
    within_s: float | None = None  # upper bound of the grace period


class OpenStore(Message, kind="open_store"):
    """Open a framework's rendezvous store for the ranks of one world or of all worlds.

    If the framework runs a cluster, open this node's part of it.
    """

    number: Count
    framework: str
    address: str
    port: Port  # 0 for any
    preload: Sequence[str] = ()  # modules that the store needs
    cluster: ClusterNode | None = None


class CloseStore(Message, kind="close_store"):
    """Close a store, because another one replaces it."""

    number: Count


# -- reports of nodes --------------------------------------------------------------------------


class RankEnded(Message, kind="outcome"):
    """A rank ended. With `exited`, its process has exited. Otherwise the rank itself reported the end."""

    outcome: Outcome
    exited: bool = True
    given: str = ""  # the last call that it received
    answered: str = ""  # the last call that it answered


class WorldCleared(Message, kind="cleared"):
    """No rank of a world remains on the node."""

    world: Count
    is_last: bool = False  # no rank of any other world remains either


class StoreReady(Message, kind="store"):
    """The port of a store, or 0 if it could not be opened."""

    number: Count
    port: Port
    address: str = ""  # empty if it is the address in the order
    error: str = ""  # why a cluster's node could not start
    note: str = ""  # a note for the user
    dashboard: str = ""  # address and port of a cluster's dashboard, if the port is unusual


class StoreGone(Message, kind="store_gone"):
    """A store's process has exited."""

    number: Count
