"""Engine protocols: what an engine must offer to give a job its nodes.

A `Renderer` only writes documents, an `Engine` runs jobs, a `ComputeEngine` also keeps computes. An
engine that cannot do something does not have the type, and is refused when it is asked for. Smaller
differences are in `can`, and are refused before submit, as are hidden variables that a job may not
have. An engine knows nothing of other engines, of frameworks, or of how anything is shown.
`engine_table` has the engines by name.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from windlass import names
from windlass.errors import SpecError
from windlass.plan.plan import Facts, Plan
from windlass.wire.log_lines import LogLine, LogQuery
from windlass.wire.results import ResultHeader
from windlass.wire.status import JobStatus

if TYPE_CHECKING:
    from windlass.spec.pod_spec import PodSize
    from windlass.wire.blocking_link import Stream


NO_HIDDEN: Mapping[str, str] = {}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_OURS = "WINDLASS_"


def check_hidden(hidden: Mapping[str, str]) -> dict[str, str]:
    """The same variables, if they can be set for ranks."""
    for name, value in hidden.items():
        if not _NAME.match(name):
            raise SpecError(
                f"{name!r} is not a name for an environment variable",
                hint="letters, digits and _, not starting with a digit",
            )
        if name in names.SET_PER_RANK or name.startswith(_OURS):
            raise SpecError(
                f"{name} is set by Windlass, so a secret cannot set it",
                hint="give the variable another name",
            )
        if "\0" in value:
            raise SpecError(
                f"the value of {name} holds a NUL character, which no environment can carry",
                hint="a secret that is not text can be mounted as a file",
            )
    return dict(hidden)


@dataclass(frozen=True, slots=True)
class JobRef:
    """Where a job is: prints as `local://ID` or `kubernetes://NAMESPACE/ID`; any process can attach."""

    engine: str
    job_id: str
    place: str = ""  # a namespace, where an engine has such

    def __str__(self) -> str:
        return f"{self.engine}://{self.place}/{self.job_id}".replace(":///", "://")


class LogReader(Protocol):
    """Lines of a job, now or as they come."""

    def read_all(self) -> Iterator[LogLine]:
        """Every line that is there."""

    def read_new(self) -> list[LogLine]:
        """Lines that came since the last call."""

    def read_rest(self) -> list[LogLine]:
        """Pieces of lines that will never end, once the job has."""


class Renderer(Protocol):
    """Plans a job for a place, and writes it as documents."""

    name: str
    can: frozenset[str]

    def facts(self) -> Facts:
        """What planning must know of the place the nodes will be in."""

    def render(
        self,
        plan: Plan,
        *,
        payload: bytes | None = None,
        bundle: Path | None = None,
        with_keys: bool = False,
    ) -> list[dict[str, Any]]:
        """The job as documents. Pure.

        `payload` and `bundle` are as for `submit`, for documents that hold them; `with_keys` adds the keys
        without which they cannot be started.
        """


class Engine(Renderer, Protocol):
    """Runs jobs."""

    def submit(
        self,
        plan: Plan,
        payload: bytes | None,
        bundle: Path | None = None,
        *,
        hidden: Mapping[str, str] = NO_HIDDEN,
    ) -> JobRef:
        """Start the nodes. `bundle` is the project's archive, for nodes that do not share this machine.

        `hidden` are variables that ranks get and that no plan, file or document holds.
        """

    def plan(self, ref: JobRef) -> Plan:
        """What was decided about a job when it was submitted."""

    def status(self, ref: JobRef) -> JobStatus:
        """What is known of the job now, also when its agents are gone."""

    def logs(self, ref: JobRef, query: LogQuery) -> LogReader:
        """A reader of all ranks' lines, merged."""

    def results(
        self, ref: JobRef, *, with_values: bool = True
    ) -> list[tuple[ResultHeader, bytes] | None]:
        """What each rank left in the last attempt, in rank order; without values, headers alone are read."""

    def open_port(self, ref: JobRef, port: int) -> socket.socket:
        """A connection to a port of node 0; OSError while node 0 does not run or nobody listens there."""

    def cancel(
        self, ref: JobRef, *, now: bool = False, why: str = "", interrupt: bool = False
    ) -> None:
        """End the job; twice is once."""

    def hold(self, ref: JobRef) -> AbstractContextManager[None]:
        """Hold the lease of an attached job: it ends some time after nobody holds one."""

    def jobs(self) -> list[JobRef]:
        """The jobs that are known here, newest first."""

    def jobs_here(self) -> list[JobRef]:
        """Those that this machine has a folder of, newest first; nothing else is asked for them."""

    def remove(self, ref: JobRef) -> None:
        """Forget an ended job and everything it left."""


class ComputeEngine(Engine, Protocol):
    """Runs jobs, and keeps computes: their nodes stay, grow and shrink, and their lead takes calls."""

    def computes(self) -> list[JobRef]:
        """The jobs that may be computes that live, newest first: their plans tell."""

    def dial(self, ref: JobRef) -> Stream:
        """A connection to the lead of a compute, before the first word; OSError while there is none."""

    def grow(
        self,
        ref: JobRef,
        indexes: Sequence[int],
        num_nodes: int,
        *,
        hidden: Mapping[str, str] = NO_HIDDEN,
        workers: PodSize | None = None,
    ) -> None:
        """Have a compute's nodes `indexes` started, of so many in all; or fewer than there are.

        `workers` is the size of nodes from 1 on, where it is their own; None: as they are, or as node 0's.
        """

    def let_go(self, ref: JobRef) -> None:
        """Stop following a job from here; it is followed again when somebody asks."""

    def set_wait_deadline(self, ref: JobRef, until_s: float | None) -> None:
        """Until when a compute waits for its machines though nobody waits for it; None: it is up."""

    def is_made_here(self, ref: JobRef) -> bool:
        """Whether a job was submitted by this user from this machine, as its keys show."""

    def identity(self) -> str:
        """What the place of the nodes calls this user; nothing where it has no names for users."""


def check_capabilities(engine: Renderer, plan: Plan) -> None:
    """Refuse, before anything starts, what the engine does not list."""
    wanted = {
        "detach": plan.detach,
        "restarts": plan.restarts > 0,
        "timeout": plan.timeout_s is not None,
        "runtime": plan.pod is not None and bool(plan.pod.runtime),
    }
    missing = sorted(
        name for name, is_wanted in wanted.items() if is_wanted and name not in engine.can
    )
    if missing:
        raise SpecError(
            f"the engine {engine.name} cannot do: {', '.join(missing)}",
            hint=f"leave out --{missing[0]}, or choose another engine",
        )
