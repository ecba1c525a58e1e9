"""Protocols that engines implement to run a job's nodes.

A `Renderer` only writes documents, an `Engine` runs jobs, and a `ComputeEngine` also keeps computes.
An engine does not implement a protocol that it cannot support, and callers check the type. `can` lists
smaller capabilities. They are checked before submit, as are the names of hidden variables. An engine
knows nothing about other engines, frameworks, or how results are displayed.
`engine_table` lists the engines by name.
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
    """Return a copy of the variables. Raise `SpecError` if one cannot be set for ranks."""
    for name, value in hidden.items():
        if not _NAME.match(name):
            raise SpecError(
                f"invalid environment variable name {name!r}",
                hint="use letters, digits and underscores, not starting with a digit",
            )
        if name in names.SET_PER_RANK or name.startswith(_OURS):
            raise SpecError(
                f"{name} is set by Windlass, so a secret cannot set it",
                hint="choose another name for the variable",
            )
        if "\0" in value:
            raise SpecError(
                f"the value of {name} contains a NUL character, which environment variables cannot have",
                hint="mount a binary secret as a file instead",
            )
    return dict(hidden)


@dataclass(frozen=True, slots=True)
class JobRef:
    """Address of a job, from which any process can attach.

    Prints as `local://ID` or `kubernetes://NAMESPACE/ID`.
    """

    engine: str
    job_id: str
    place: str = ""  # the namespace, for engines that have namespaces

    def __str__(self) -> str:
        return f"{self.engine}://{self.place}/{self.job_id}".replace(":///", "://")


class LogReader(Protocol):
    """Reader of a job's log lines, all of them or only the new ones."""

    def read_all(self) -> Iterator[LogLine]:
        """Yield every available line."""

    def read_new(self) -> list[LogLine]:
        """Return the lines that arrived since the last call."""

    def read_rest(self) -> list[LogLine]:
        """Return the unfinished last lines of an ended job."""


class Renderer(Protocol):
    """Engine that plans a job and writes it as documents."""

    name: str
    can: frozenset[str]

    def facts(self) -> Facts:
        """Return the facts about the nodes' environment that planning needs."""

    def render(
        self,
        plan: Plan,
        *,
        payload: bytes | None = None,
        bundle: Path | None = None,
        with_keys: bool = False,
    ) -> list[dict[str, Any]]:
        """Return the job as documents, without side effects.

        `payload` and `bundle` are as for `submit`, for documents that contain them. `with_keys` adds the
        keys that the job needs to start.
        """


class Engine(Renderer, Protocol):
    """Engine that runs jobs."""

    def submit(
        self,
        plan: Plan,
        payload: bytes | None,
        bundle: Path | None = None,
        *,
        hidden: Mapping[str, str] = NO_HIDDEN,
    ) -> JobRef:
        """Start the nodes.

        `bundle` is the project's archive, for nodes that run on other machines. `hidden` are variables for
        the ranks that never appear in a plan, file or document.
        """

    def plan(self, ref: JobRef) -> Plan:
        """Return the plan that a job was submitted with."""

    def status(self, ref: JobRef) -> JobStatus:
        """Return the current status of a job, even after its agents have exited."""

    def logs(self, ref: JobRef, query: LogQuery) -> LogReader:
        """Return a reader of the merged output of all ranks."""

    def results(
        self, ref: JobRef, *, with_values: bool = True
    ) -> list[tuple[ResultHeader, bytes] | None]:
        """Return each rank's result of the last attempt, in rank order.

        If `with_values` is false, read only the headers.
        """

    def open_port(self, ref: JobRef, port: int) -> socket.socket:
        """Return a connection to a port of node 0.

        Raise `OSError` if node 0 is not running or does not listen on the port.
        """

    def cancel(
        self, ref: JobRef, *, now: bool = False, why: str = "", interrupt: bool = False
    ) -> None:
        """Cancel the job. Cancelling it again has no effect."""

    def hold(self, ref: JobRef) -> AbstractContextManager[None]:
        """Hold a lease of an attached job. The job ends some time after its last lease is released."""

    def jobs(self) -> list[JobRef]:
        """Return the jobs that the engine knows, newest first."""

    def jobs_here(self) -> list[JobRef]:
        """Return the jobs that have a folder on this machine, newest first. Sends no request."""

    def remove(self, ref: JobRef) -> None:
        """Remove an ended job with all its files and objects."""


class ComputeEngine(Engine, Protocol):
    """Engine that runs jobs and keeps computes.

    The nodes of a compute stay up, can grow and shrink in number, and their lead accepts calls.
    """

    def computes(self) -> list[JobRef]:
        """Return the jobs that may be live computes, newest first.

        Only a job's plan shows whether it is one.
        """

    def dial(self, ref: JobRef) -> Stream:
        """Return a new connection to the lead of a compute, on which nothing has been sent yet.

        Raise `OSError` while no lead can be reached.
        """

    def grow(
        self,
        ref: JobRef,
        indexes: Sequence[int],
        num_nodes: int,
        *,
        hidden: Mapping[str, str] = NO_HIDDEN,
        workers: PodSize | None = None,
    ) -> None:
        """Resize a compute to `num_nodes` nodes, and start the nodes `indexes`.

        `workers` is the size of nodes 1 and up. With None they keep their size, or have that of node 0.
        """

    def let_go(self, ref: JobRef) -> None:
        """Stop following a job. The next request for it follows it again."""

    def set_wait_deadline(self, ref: JobRef, until_s: float | None) -> None:
        """Set the time until which a compute stays queued without a waiting client.

        None removes the deadline of a compute that is up.
        """

    def is_made_here(self, ref: JobRef) -> bool:
        """Return whether this user submitted a job from this machine, judging by its keys."""

    def identity(self) -> str:
        """Return the user's name on the cluster, or an empty string if the engine has no user names."""


def check_capabilities(engine: Renderer, plan: Plan) -> None:
    """Raise `SpecError` if the plan needs a capability that the engine lacks."""
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
            f"the engine {engine.name} does not support: {', '.join(missing)}",
            hint=f"omit --{missing[0]}, or choose another engine",
        )
