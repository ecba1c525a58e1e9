"""The `Framework` record, which describes one way to spread work over ranks, and the table of frameworks.

Each framework fills in one record in its own module, which is imported when the framework is used.
The client, the lead, nodes, the fork server and ranks read the record, so these modules import little.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass

from windlass.errors import SpecError

TYPE_CHECKING = False

FRAMEWORKS = {
    "pytorch": "windlass.frameworks.pytorch",
    "spmd": "windlass.frameworks.spmd",
    "command": "windlass.frameworks.command",
    "ray": "windlass.frameworks.ray",
    "monarch": "windlass.frameworks.monarch",
}


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import Any, NoReturn, Protocol

    from windlass.plan.plan import Plan, RankRendezvous
    from windlass.wire.messages.forkserver import ClusterNode
    from windlass.wire.results import ErrorInfo

    class MakeEnv(Protocol):
        def __call__(
            self, plan: Plan, rank: int, *, attempt: int, rendezvous: RankRendezvous
        ) -> dict[str, str]: ...

    class Fill(Protocol):
        def __call__(
            self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], /
        ) -> tuple[Sequence[Any], Mapping[str, Any]]: ...

    class ReportCluster(Protocol):
        def __call__(
            self,
            port: int,
            *,
            address: str = "",
            error: str = "",
            note: str = "",
            dashboard: str = "",
        ) -> None: ...

    class RunClusterNode(Protocol):
        def __call__(
            self, address: str, port: int, node: ClusterNode, report: ReportCluster
        ) -> NoReturn: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousStore:
    """Rendezvous store that opens before any rank starts, in a fork of node 0's fork server."""

    # returns whether ranks want a store, from the preloaded modules and the number of ranks
    is_wanted: Callable[[Collection[str], int], bool]
    # opens the store at an address and, if free, a port, then reports the port (0: no store) and serves
    serve: Callable[[str, int, Callable[[int], None]], NoReturn]
    # runs in a rank with its variables. A rank that takes calls also passes a function that names the part
    # of the store for one process group.
    share: Callable[[Mapping[str, str], Callable[[], str] | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCluster:
    """A framework's own processes on all nodes, which serve the rank on node 0 and outlive its calls.

    Each process is a fork of its node's fork server. The one on node 0 opens first, as a store does. The
    others receive its address and join it.
    """

    # serves at the given address, or joins the cluster there, and reports its port when it is up
    run: RunClusterNode
    # runs in a rank that takes calls, after the variables of a call are set
    meet: Callable[[], None]
    first: str  # display name of node 0's process
    other: str  # display name of the other nodes' processes
    extra_nodes: int  # number of nodes besides the requested workers
    library: str  # the package whose version must match the client's
    # Port of node 0's process in pods (0: any). Other nodes can join a fixed port without waiting for it.
    pod_port: int = 0
    dashboard_port: int = 0  # port of node 0's dashboard in pods (0: no dashboard)
    needs_all: bool = False  # losing any node ends the cluster and everything that runs on it
    is_in_project: bool = False  # its processes import the project's code and start in its folder
    is_mesh: bool = False  # the framework's own clients find its pods by a mesh's name
    prints: bool = False  # the output of its processes is shown like that of ranks
    # run in a rank that takes calls: slow preparation before the first call, and clean-up after the last
    prepare: Callable[[], None] = lambda: None
    leave: Callable[[], None] = lambda: None


def _fill_nothing(
    _function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    return args, kwargs


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """A way to distribute work across ranks."""

    name: str
    preload: tuple[str, ...]  # preloaded without being requested, if the source imports it
    takes_commands: bool  # False: commands run under the `command` framework
    gives_list: bool  # a call returns every rank's value in rank order (False: only rank 0's value)
    # returns the ranks per node, from the requested number and the kind of work
    count_procs: Callable[[int, str], int]
    make_env: MakeEnv  # returns a rank's variables
    # returns the variables that a call sets in the ranks that run it
    make_call_env: Callable[[RankRendezvous], dict[str, str]]
    store: RendezvousStore | None  # None: rank 0 opens a store itself, at a port reserved for it
    # returns whether a rank failed only because another one did
    is_consequence: Callable[[ErrorInfo], bool]
    cluster: NodeCluster | None = None  # if set, ranks run on node 0 only
    # runs in a rank of a job before its work, to apply the rank's variables
    apply_env: Callable[[], None] = lambda: None
    gives: str = ""  # name of the function parameter that `fill` supplies
    fill: Fill = _fill_nothing  # runs in a rank: adds that parameter to a function's arguments
    # runs in a rank: replaces an exception with a more informative one
    explain: Callable[[BaseException], BaseException] = lambda error: error

    def opens_store(self, preload: Collection[str], num_ranks: int) -> bool:
        """Return whether a store or cluster is opened before the ranks start."""
        store = self.store
        return self.cluster is not None or (
            store is not None and store.is_wanted(preload, num_ranks)
        )


@functools.cache
def load_framework(name: str) -> Framework:
    """Return the framework with a name, importing its module on first use."""
    check_framework(name)
    framework: Framework = importlib.import_module(FRAMEWORKS[name]).FRAMEWORK
    return framework


def choose_framework(requested: str, *, is_command: bool) -> Framework:
    """Return the framework that runs the work. An empty `requested` selects the default for its kind."""
    from windlass.spec.work import Command, Function

    framework = load_framework(requested or (Command if is_command else Function).framework)
    if is_command and not framework.takes_commands:
        return load_framework(Command.framework)
    return framework


def check_framework(name: str) -> None:
    """Raise SpecError for an unknown name, and suggest the nearest one."""
    if name in FRAMEWORKS:
        return
    from windlass.near_names import did_you_mean

    hint = did_you_mean(str(name), FRAMEWORKS, show=repr)
    raise SpecError(f"unknown framework {name!r}", hint=hint)
