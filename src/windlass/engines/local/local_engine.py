"""The local engine, which runs each node of a job as an agent process on this machine.

State that outlives a job is in its folder under the home, and sockets are in a short-lived folder of mode
0700. The lead holds a lock on a file of the job's folder until it exits. A process that can take the lock
knows that the lead is gone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from windlass import names, processes, records
from windlass.engines.archives import local_archive
from windlass.engines.finished_jobs import forget_old_jobs, read_outcomes
from windlass.engines.local.lead_socket import (
    dial_lead,
    find_socket_folder,
    make_socket_folder,
    reach_lead,
    record_socket_folder,
    remove_socket_folder,
)
from windlass.engines.local.local_agents import (
    AgentProcess,
    make_command,
    reap_agents,
    take_head_start,
)
from windlass.engines.local.local_gpus import (
    GpuShare,
    GpusTaken,
    assign_gpus,
    check_gpus,
    read_share,
)
from windlass.engines.protocol import NO_HIDDEN, JobRef, check_hidden
from windlass.errors import EngineError, EngineMissing, JobNotFound, ProtocolError, SpecError
from windlass.near_names import did_you_mean
from windlass.plan.plan import Facts, Plan, read_plan, render_plan
from windlass.settings import Settings
from windlass.spec.pod_spec import PodSize
from windlass.trusted import check_folder_owner, make_own
from windlass.waiting import wait_until
from windlass.wire.blocking_link import ConnectionBroken
from windlass.wire.job_folder import JobFolder, write_atomically
from windlass.wire.log_files import LogFiles
from windlass.wire.log_lines import LogQuery
from windlass.wire.messages.agents import StartNode
from windlass.wire.messages.jobs import CancelJob
from windlass.wire.payloads import remove_spills
from windlass.wire.results import ResultHeader
from windlass.wire.states import NodeState
from windlass.wire.status import (
    FailureKind,
    JobStatus,
    Phase,
    StatusFile,
    cut_text,
    make_first_status,
    make_job_verdict,
    render_status,
)

_TIDY_S = 10.0
_MAX_NAMES = 50  # number of jobs that are searched for a similar name
_PORT_S = 5.0
_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


class LocalEngine:
    """Engine that runs nodes as processes of this machine.

    Another package can derive an engine with its own name and a `launcher`. A launcher is a command that
    runs its arguments on this machine and passes its file descriptors on.
    """

    name = "local"
    can = frozenset({"computes", "detach", "restarts", "timeout"})

    def __init__(self, settings: Settings, *, name: str = "", launcher: Sequence[str] = ()) -> None:
        self.name = name or self.name
        self._launcher = launcher
        self._home = Path(str(settings.value("home"))).expanduser()
        self._jobs = self._home / (name or "jobs")
        check_folder_owner(self._jobs)
        self._gpus = GpuShare(settings.gpus, settings.pretend_gpus)
        self._files: dict[Path, StatusFile] = {}
        self._births: dict[str, AgentProcess] = {}  # held until a lease replaces them

    def facts(self) -> Facts:
        return Facts(
            environ=dict(os.environ),
            env={names.GLOO_SOCKET_IFNAME: _LOOPBACK},
            master_addr="127.0.0.1",
            replaces_nodes=True,
            jobs_folder=str(self._jobs.absolute()),
        )

    def render(self, plan: Plan, **_inputs: object) -> list[dict[str, Any]]:
        return [{"kind": "Plan", **records.to_json(plan)}]

    # -- starting ------------------------------------------------------------------------------

    def submit(
        self,
        plan: Plan,
        payload: bytes | None,
        bundle: Path | None = None,  # noqa: ARG002
        *,
        hidden: Mapping[str, str] = NO_HIDDEN,
    ) -> JobRef:
        hidden = check_hidden(hidden)
        folder = JobFolder(self._jobs / plan.job_id)
        python = _find_python(plan.python)
        launcher = _find_launcher(self._launcher)
        if folder.path.exists():
            raise EngineError(
                f"the job {plan.job_id} already exists", hint="submit the job again to get a new ID"
            )
        gpus = check_gpus(self._gpus, len(plan.nodes), plan.env)
        archive = _find_archive()
        run_dir = make_socket_folder(plan.job_id)
        try:
            make_own(folder.path, below=self._home, is_new=True)
            record_socket_folder(folder, run_dir)
            if payload is not None:
                folder.payload.write_bytes(payload)
            write_atomically(folder.status, render_status(make_first_status(plan)))
            with folder.lead_lock.open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._assign_gpus(folder, [node.index for node in plan.nodes], self._gpus, gpus)
                # The plan is last, since it makes the folder a job.
                write_atomically(folder.plan, render_plan(plan).encode())
                command = [*launcher, *make_command(python, archive)]
                self._start_agents(plan, folder, run_dir, command, hidden, lock.fileno())
        except EngineError:
            shutil.rmtree(run_dir, ignore_errors=True)
            if not folder.plan.exists():
                shutil.rmtree(folder.path, ignore_errors=True)
            raise
        except OSError as error:
            shutil.rmtree(folder.path, ignore_errors=True)
            shutil.rmtree(run_dir, ignore_errors=True)
            raise EngineError(
                f"cannot start the job in {folder.path}: {error.strerror or error}",
                hint=f"{_remedy(error)}, or set {names.HOME} to another folder",
            ) from error
        forget_old_jobs(self._jobs, lambda path: not is_lead_alive(JobFolder(path)))
        return JobRef(self.name, plan.job_id)

    def _start_agents(
        self,
        plan: Plan,
        folder: JobFolder,
        run_dir: Path,
        command: Sequence[str],
        hidden: Mapping[str, str],
        lock: int,
    ) -> None:
        for node in plan.nodes:
            is_lead = node.index == 0
            log = str(folder.agent_log(node.index))
            ahead = take_head_start(command[0], command[-1]) if is_lead else None
            agent = ahead or AgentProcess(command, log=log)
            agent.order(_make_order(folder, node.index, run_dir, hidden), [lock] if is_lead else [])
            if is_lead and not plan.detach:
                self._births[plan.job_id] = agent
            else:
                agent.let_go()

    def _assign_gpus(
        self, folder: JobFolder, indexes: Sequence[int], share: GpuShare, gpus: Sequence[str]
    ) -> None:
        """Assign GPUs, waiting for leads of ended jobs to release theirs."""
        taken: list[GpusTaken] = []

        def is_done() -> bool:
            try:
                assign_gpus(folder, indexes, share, gpus, home=self._home, is_alive=is_lead_alive)
            except GpusTaken as error:
                taken.append(error)
                return not any(map(_has_ended, error.holders))
            taken.clear()
            return True

        wait_until(is_done, timeout_s=_TIDY_S)
        if taken:
            raise taken[-1]

    def grow(
        self,
        ref: JobRef,
        indexes: Sequence[int],
        num_nodes: int,  # noqa: ARG002 - nodes that are not started do not exist
        *,
        hidden: Mapping[str, str] = NO_HIDDEN,
        workers: PodSize | None = None,  # noqa: ARG002 - each call passes it to frameworks
    ) -> None:
        folder = self._folder(ref)
        run_dir = find_socket_folder(folder)
        plan = self.plan(ref)
        command = make_command(_find_python(plan.python), _find_archive())
        command = [*_find_launcher(self._launcher), *command]
        share = read_share(folder)
        gpus = check_gpus(share, len(indexes), plan.env)
        self._assign_gpus(folder, indexes, share, gpus)
        for index in indexes:
            agent = AgentProcess(command, log=str(folder.agent_log(index)))
            agent.order(_make_order(folder, index, run_dir, check_hidden(hidden)))
            agent.let_go()

    def dial(self, ref: JobRef) -> socket.socket:
        return dial_lead(JobFolder(self._jobs / ref.job_id))

    def set_wait_deadline(self, ref: JobRef, until_s: float | None) -> None:
        """Do nothing, because nodes on this machine start immediately."""

    def is_made_here(self, ref: JobRef) -> bool:
        return (self._jobs / ref.job_id).exists()  # below the user's own home

    def identity(self) -> str:
        return ""

    def let_go(self, ref: JobRef) -> None:
        self._files.pop(self._jobs / ref.job_id, None)

    def open_port(self, ref: JobRef, port: int) -> socket.socket:
        if self.status(ref).phase.is_final:
            raise ConnectionRefusedError(f"node 0 of {ref.job_id} is not running")
        return socket.create_connection(("127.0.0.1", port), timeout=_PORT_S)

    # -- reading -------------------------------------------------------------------------------

    def status(self, ref: JobRef) -> JobStatus:
        reap_agents()
        folder = self._folder(ref)
        status = self._read_status(folder)
        if status.phase.is_final or is_lead_alive(folder):
            return status
        status = self._read_status(folder)  # it may have ended in between
        return status if status.phase.is_final else self._judge_lost(folder, status)

    def _read_status(self, folder: JobFolder) -> JobStatus:
        try:
            return self._files.setdefault(folder.path, StatusFile(folder.status)).read()
        except FileNotFoundError:
            raise self._not_found(folder.path.name) from None
        except (OSError, ProtocolError) as error:
            if isinstance(error, ProtocolError) and is_lead_alive(folder):
                # A rank overwrote it. The lead rewrites it with the next change.
                return self._files[folder.path].last or make_first_status(self._plan(folder))
            raise EngineError(
                f"cannot read the status of {folder.path.name}: {error}",
                hint=f"run `windlass rm {folder.path.name}` to remove the job",
            ) from error

    def _judge_lost(self, folder: JobFolder, status: JobStatus) -> JobStatus:
        """Return the status of a job with a dead lead, with a verdict from the last line of its log."""
        plan = self._plan(folder)
        last_words = _last_line(folder.agent_log(0))
        at_s = folder.status.stat().st_mtime
        if status.phase is Phase.PENDING:
            kind, message = (
                FailureKind.START_FAILED,
                f"the agent of {plan.nodes[0].name} did not start",
            )
        else:
            kind, message = (
                FailureKind.LOST_NODE,
                f"{plan.nodes[0].name}'s agent died, which ended the job",
            )
        verdict = make_job_verdict(
            plan, kind, f"{message}: {last_words}" if last_words else message, at_s=at_s, node=0
        )
        verdict = replace(verdict, next=f"cat {folder.agent_log(0)}", attempt=status.attempt)
        nodes = (replace(node, state=NodeState.LOST) for node in status.nodes)
        return replace(
            status,
            phase=Phase.FAILED,
            verdict=verdict,
            ended_at_s=at_s,
            ranks=status.lose_ranks(),
            nodes=tuple(nodes),
        )

    def logs(self, ref: JobRef, query: LogQuery) -> LogFiles:
        folder = self._folder(ref)
        return LogFiles(folder, self._plan(folder), query)

    def results(
        self, ref: JobRef, *, with_values: bool = True
    ) -> list[tuple[ResultHeader, bytes] | None]:
        folder = self._folder(ref)
        status = self.status(ref)
        return read_outcomes(folder, self._plan(folder), status, with_values=with_values)

    def jobs(self) -> list[JobRef]:
        folders = [path for path in self._jobs.glob("*") if (path / names.PLAN_FILE).exists()]
        folders.sort(key=lambda path: (path / names.PLAN_FILE).stat().st_mtime, reverse=True)
        return [JobRef(self.name, path.name) for path in folders]

    def computes(self) -> list[JobRef]:
        return self.jobs()

    def jobs_here(self) -> list[JobRef]:
        return self.jobs()

    # -- ending --------------------------------------------------------------------------------

    def cancel(
        self, ref: JobRef, *, now: bool = False, why: str = "", interrupt: bool = False
    ) -> None:
        folder = self._folder(ref)
        if self.status(ref).phase.is_final:
            _kill_marked(ref.job_id)
            return
        link = reach_lead(folder, lease=False, is_needed=lambda: is_lead_alive(folder))
        if link is None:
            _kill_marked(ref.job_id)
            return
        with (
            contextlib.closing(link),
            contextlib.suppress(ConnectionBroken),
        ):  # the lead may end meanwhile
            link.ask(CancelJob(now=now, why=why, interrupt=interrupt), timeout_s=60.0)

    @contextlib.contextmanager
    def hold(self, ref: JobRef) -> Iterator[None]:
        folder = self._folder(ref)
        link = reach_lead(folder, lease=True, is_needed=lambda: is_lead_alive(folder))
        with contextlib.closing(link) if link else contextlib.nullcontext():
            if ref.job_id in self._births:
                self._births.pop(ref.job_id).let_go()
            yield

    def remove(self, ref: JobRef) -> None:
        folder = self._folder(ref)
        if is_lead_alive(folder) and not self._has_ended(ref):
            raise SpecError(
                f"{ref.job_id} is still {self.status(ref).phase.value}",
                hint=f"run `windlass cancel {ref.job_id}`, then `windlass rm {ref.job_id}`",
            )
        # A lead cleans up after it has written its last status.
        wait_until(lambda: not is_lead_alive(folder), timeout_s=_TIDY_S)
        _kill_marked(ref.job_id)
        remove_socket_folder(folder)
        shutil.rmtree(folder.path)

    def _has_ended(self, ref: JobRef) -> bool:
        try:
            return self.status(ref).phase.is_final
        except EngineError:  # a status that cannot be read
            return False

    def _folder(self, ref: JobRef) -> JobFolder:
        folder = JobFolder(self._jobs / ref.job_id)
        if not ref.job_id or "/" in ref.job_id or not folder.plan.exists():
            raise self._not_found(ref.job_id)
        return folder

    def _not_found(self, job_id: str) -> JobNotFound:
        """Return the error for an unknown job, with the nearest id or name of the newest jobs."""
        others = [ref.job_id for ref in self.jobs() if ref.job_id != job_id]
        near = [*others, *self._read_names(others[:_MAX_NAMES])]
        hint = did_you_mean(job_id, near, "run `windlass ls` to list the jobs", alike=0.5)
        return JobNotFound(f"job {job_id!r} not found on this machine", hint=hint)

    def _read_names(self, job_ids: list[str]) -> Iterator[str]:
        """Yield the names of jobs, as far as they can be read."""
        for job_id in job_ids:
            with contextlib.suppress(OSError, ProtocolError):
                yield StatusFile(JobFolder(self._jobs / job_id).status).read().name

    def plan(self, ref: JobRef) -> Plan:
        return self._plan(self._folder(ref))

    @staticmethod
    def _plan(folder: JobFolder) -> Plan:
        return read_plan(folder.plan.read_text())


def _make_order(
    folder: JobFolder, index: int, run_dir: Path, hidden: Mapping[str, str]
) -> StartNode:
    return StartNode(
        node=index,
        plan=str(folder.plan),
        run_dir=str(run_dir),
        log=str(folder.agent_log(index)),
        hidden=dict(hidden),
    )


def _find_python(wanted: str) -> str:
    if not wanted:
        return sys.executable
    interpreter = shutil.which(os.path.expanduser(wanted))
    if interpreter is None:
        raise SpecError(
            f"Python interpreter {wanted!r} not found", hint="pass the path to Python 3.10 or later"
        )
    return os.path.abspath(interpreter)


def _find_launcher(words: Sequence[str]) -> list[str]:
    """Return the launcher with the path of its program."""
    if not words:
        return []
    program = shutil.which(words[0])
    if program is None:
        raise EngineMissing(
            f"program {words[0]!r} not found, which starts the agents", hint="install it"
        )
    return [program, *words[1:]]


def _find_archive() -> str:
    try:
        return local_archive()
    except OSError as error:
        raise EngineError(
            f"cannot store the agent at {error.filename}: {error.strerror or error}",
            hint=f"{_remedy(error)}, or set XDG_CACHE_HOME to another folder",
        ) from error


def _remedy(error: OSError) -> str:
    return "free some space there" if error.errno == errno.ENOSPC else "make it writable"


def is_lead_alive(folder: JobFolder) -> bool:
    """Return whether the lead of a local job is running, and so holds its lock."""
    try:
        with folder.lead_lock.open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # other clients may check, too
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def _has_ended(folder: JobFolder) -> bool:
    """Return whether a job's status is final. Its lead may still be running."""
    try:
        return StatusFile(folder.status).read().phase.is_final
    except (OSError, ProtocolError):
        return False


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return cut_text(lines[-1], 300) if lines else ""


def _kill_marked(job_id: str) -> None:
    """Kill the processes and remove the spills of a dead agent."""
    remove_spills(job_id)
    for pid in processes.find_marked(f"{names.JOB_ID}={job_id}"):
        processes.kill(pid, signal.SIGKILL)
