"""Framework: all that differs between the ways in which work is spread over ranks, as one record.

Each framework fills one in, in a file of its own; `agent.frameworks.framework_table` names them. The client,
the lead, the node, the fork server and ranks all load the one that a job uses: so its file imports little,
and what only some of them need when it is called.
"""

from __future__ import annotations

from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any, NoReturn, Protocol

    from windlass.plan.plan import Plan
    from windlass.plan.rank_env import Meeting
    from windlass.wire.job_folder import JobFolder
    from windlass.wire.results import ErrorInfo

    class MakeEnv(Protocol):
        def __call__(
            self, plan: Plan, rank: int, *, attempt: int, meeting: Meeting
        ) -> dict[str, str]: ...

    class Enter(Protocol):
        def __call__(
            self, plan: dict[str, Any], folder: JobFolder, *, rank: int, attempt: int
        ) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MeetingStore:
    """A place to meet that is open before any rank starts: a fork of node 0's fork server."""

    # whether ranks want one: the modules that are imported ahead, and how many ranks there are
    is_wanted: Callable[[Collection[str], int], bool]
    # at an address and, if it is free, a port: tell the port, 0 where there can be none, and serve
    serve: Callable[[str, int, Callable[[int], None]], NoReturn]
    # in a rank that takes calls: what its call's variables say of the meeting, and how to name
    # the part of the store that is for one group of ranks alone
    share: Callable[[Mapping[str, str], Callable[[], str]], None]


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
    enter: Enter  # from a prepared process into the work; its exit code
    is_consequence: Callable[[ErrorInfo], bool]  # whether a rank failed only because another did
