"""Framework: all that differs between the ways to spread work over ranks, and the table of frameworks.

Each framework fills in one record, in a module of its own, which is imported when the framework is used. The
client, the lead, nodes, the fork server and ranks read it, so this module and theirs import little.
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

    from windlass.plan.plan import Meeting, Plan
    from windlass.wire.messages.forkserver import ClusterNode
    from windlass.wire.results import ErrorInfo

    class MakeEnv(Protocol):
        def __call__(
            self, plan: Plan, rank: int, *, attempt: int, meeting: Meeting
        ) -> dict[str, str]: ...

    class Fill(Protocol):
        def __call__(
            self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], /
        ) -> tuple[Sequence[Any], Mapping[str, Any]]: ...

    class TellCluster(Protocol):
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
            self, address: str, port: int, node: ClusterNode, tell: TellCluster
        ) -> NoReturn: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MeetingStore:
    """A place to meet that is open before any rank starts: a fork of node 0's fork server."""

    # whether ranks want one: the modules that are imported ahead, and how many ranks there are
    is_wanted: Callable[[Collection[str], int], bool]
    # at an address and, if it is free, a port: tell the port, 0 where there can be none, and serve
    serve: Callable[[str, int, Callable[[int], None]], NoReturn]
    # in a rank: what its variables say of the meeting, and, where it takes calls, how to name
    # the part of the store that is for one group of ranks alone
    share: Callable[[Mapping[str, str], Callable[[], str] | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCluster:
    """Processes of a framework's own on all nodes, which serve the rank on node 0 and outlive its calls.

    Node 0's is opened first, as a store is; the others are told where that is, and join it. Each is a fork
    of its node's fork server.
    """

    run: RunClusterNode  # at an address, or the one to join: tell the port once it is there, and serve
    meet: Callable[[], None]  # in a rank that takes calls, once its call's variables are set
    first: str  # what node 0's is called, for people
    other: str  # and that of the others
    extra_nodes: int  # beside those that are asked for as workers
    library: str  # the package whose version must be that of the client
    pod_port: int = (
        0  # at which others find node 0's, in pods: they need not wait to be told; 0: any
    )
    dashboard_port: int = 0  # at which it serves a page on node 0, in pods; 0: none
    needs_all: bool = False  # without any one of its nodes it is none, and whatever runs on it ends
    is_in_project: bool = False  # its processes import the project's code, and are where ranks are
    is_mesh: bool = False  # its own clients find its pods by a mesh's name
    prints: bool = False  # what its processes print is shown, as that of ranks is
    # in a rank that takes calls: what takes long and needs no call, and what follows its last one
    prepare: Callable[[], None] = lambda: None
    leave: Callable[[], None] = lambda: None


def _fill_nothing(
    _function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    return args, kwargs


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """How work is spread over ranks."""

    name: str
    preload: tuple[str, ...]  # what may be imported ahead unasked, where the source leads to it
    takes_commands: bool  # else a command runs as `command` runs it
    gives_list: bool  # a call returns every rank's value, in rank order; else that of rank 0
    # ranks per node, from how many were asked for and the kind of the work
    count_procs: Callable[[int, str], int]
    make_env: MakeEnv  # a rank's variables
    # those that a call brings to ranks which wait for it
    make_call_env: Callable[[Meeting], dict[str, str]]
    store: MeetingStore | None  # None: rank 0 opens a place to meet, at a port that is held for it
    is_consequence: Callable[[ErrorInfo], bool]  # whether a rank failed only because another did
    cluster: NodeCluster | None = None  # then ranks are on node 0 alone, and meet there
    # in a rank of a job, before its work: what has to read the variables that it was started with
    heed_env: Callable[[], None] = lambda: None
    gives: str = ""  # a parameter that functions may have, and that `fill` gives them
    fill: Fill = (
        _fill_nothing  # in a rank: the arguments of a function, and what it is given beside
    )
    # in a rank: what was raised, in words that say more
    explain: Callable[[BaseException], BaseException] = lambda error: error

    def opens_store(self, preload: Collection[str], num_ranks: int) -> bool:
        """Whether something is opened before ranks start, where they meet."""
        store = self.store
        return self.cluster is not None or (
            store is not None and store.is_wanted(preload, num_ranks)
        )


@functools.cache
def load_framework(name: str) -> Framework:
    """The framework of a plan or a call."""
    check_framework(name)
    framework: Framework = importlib.import_module(FRAMEWORKS[name]).FRAMEWORK
    return framework


def choose_framework(asked: str, *, is_command: bool) -> Framework:
    """The framework that runs some work, from the one that was asked for; empty: the work's own."""
    from windlass.spec.work import Command, Function

    framework = load_framework(asked or (Command if is_command else Function).framework)
    if is_command and not framework.takes_commands:
        return load_framework(Command.framework)
    return framework


def check_framework(name: str) -> None:
    """Refuse an unknown name, and suggest the nearest one."""
    if name in FRAMEWORKS:
        return
    from windlass.near_names import did_you_mean

    hint = did_you_mean(str(name), FRAMEWORKS, show=repr)
    raise SpecError(f"there is no framework {name!r}", hint=hint)
