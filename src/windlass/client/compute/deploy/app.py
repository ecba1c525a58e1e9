"""app: a command that runs once on every node, so that a plain `torchrun` command forms one world.

    app = wl.app(name="ddp", cli_command="torchrun --nproc_per_node=8 train.py", gpus=8, replicas=4)
    app.deploy().wait()

Creating an app starts nothing. `deploy` submits it as a detached job, which can be found by its name.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace as make_other
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass import names
from windlass.client.compute.nodes.compute_keywords import check_app_keywords, read_words
from windlass.client.compute.nodes.compute_spec import ResolvedCompute, decide
from windlass.client.compute.nodes.find_computes import END_S
from windlass.client.jobs.job import Job
from windlass.client.jobs.job_ids import is_made_from
from windlass.client.jobs.launcher_size import check_num_nodes, read_num_nodes
from windlass.client.jobs.run import Prepared, current_folder, prepare_target
from windlass.client.jobs.target import WorkTarget
from windlass.client.keywords import APP, show_keywords
from windlass.client.terminal import print_notice
from windlass.engines.protocol import Engine
from windlass.errors import JobNotFound, SpecError, count_noun
from windlass.records import to_json
from windlass.spec.launchers import find_launcher
from windlass.spec.work import Command
from windlass.wire.log_lines import LogLine
from windlass.wire.status import JobStatus

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from windlass.client.keyword_types import AppKeywords

# syntax that needs a shell. Quotes do not, because shlex also reads them.
_SHELL = re.compile(r"[|&;<>()$`*?~\n]|\A\s*\w+=")


@show_keywords(APP)
def app(
    cli_command: str,
    *,
    name: str = "",
    replicas: int | None = None,
    procs: int | None = None,
    gpus: int = 0,
    engine: str = "",
    **keywords: Unpack[AppKeywords],
) -> App:
    """Make an app from a command, which `deploy` starts once on each of a number of nodes.

    On each node NNODES, NODE_RANK, NPROC_PER_NODE, MASTER_ADDR and MASTER_PORT are set. The variables that
    torchrun takes its flags from are set too: PET_NNODES, PET_NODE_RANK, PET_NPROC_PER_NODE, PET_MASTER_ADDR
    and PET_MASTER_PORT.

    cli_command: the command, as typed in a shell.
    name: the app's name (default: the program's).
    replicas: number of nodes (default: the number in the command, or 1).
    procs: processes that a torchrun command starts on each node (default: one per GPU, or 1).
    gpus: GPUs per node.
    engine: engine that provides the nodes (default: a cluster if there is one, else local).
    """
    if "inactivity_ttl" in keywords:
        raise SpecError(
            "app does not support inactivity_ttl: an app ends with its command",
            hint="use timeout_s= to limit how long it runs",
        )
    check_app_keywords(
        "app", keywords, own=("cli_command", "replicas", "procs", "name", "gpus", "engine")
    )
    if procs is not None and (isinstance(procs, bool) or not isinstance(procs, int) or procs < 1):
        raise SpecError(f"procs must be a whole number of at least 1, not {procs!r:.60}")
    argv = _split(cli_command)
    return App(
        name=name or Path(argv[0]).stem,
        argv=argv,
        replicas=_count_nodes(cli_command, replicas),
        procs=procs or 0,
        engine=engine,
        keywords={**keywords, "gpus": gpus},
    )


class App:
    """Command and the nodes it runs on, returned by `wl.app`."""

    def __init__(
        self,
        *,
        name: str,
        argv: tuple[str, ...],
        replicas: int,
        engine: str,
        procs: int = 0,
        keywords: Mapping[str, Any],
    ) -> None:
        self.name = name
        self.argv = argv
        self.replicas = replicas
        self._procs = procs
        self._engine_name = engine
        self._keywords = keywords
        self._job: Job | None = None

    def __repr__(self) -> str:
        return f"App({self.name!r}, {shlex.join(self.argv)!r}, replicas={self.replicas})"

    def deploy(self, *, replace: bool = False) -> Job:
        """Start the app and return its job.

        replace: first end a running app of the same name.
        """
        wanted = self._decide()
        running = self._find(wanted.engine, is_running=True)
        if running is not None and not replace:
            raise SpecError(
                f"the app {self.name} is already running as {running.ref}",
                hint=f"`app.deploy(replace=True)` ends it first; `windlass cancel {running.id}` stops it",
            )
        prepared = self._prepare(wanted)
        wanted.ensure_volumes(self.replicas)
        if running is not None:
            running.cancel(why=f"{self.name} is deployed again")
            running.wait(END_S, say=lambda _: print_notice(f"waiting for {running.id} to end"))
        self._job = prepared.start(hidden=wanted.hidden)
        where = wanted.where
        nodes = count_noun(self.replicas, "node")
        print_notice(f"{self.name} is {self._job.ref} on {nodes} ({where.engine}: {where.why})")
        return self._job

    @property
    def job(self) -> Job:
        """Job that was deployed by this process, else the newest job of its name."""
        if self._job is None:
            self._job = self._find(self._decide().engine, is_running=False)
        if self._job is None:
            raise JobNotFound(
                f"the app {self.name} has not been deployed yet", hint="call app.deploy()"
            )
        return self._job

    def status(self) -> JobStatus:
        """Return the current status: phase, nodes and verdict."""
        return self.job.status()

    def logs(
        self,
        *,
        follow: bool = False,
        rank: int | None = None,
        node: int | None = None,
        attempt: int | None = None,
        since: float | None = None,
        grep: str | None = None,
    ) -> Iterator[LogLine]:
        """Return an iterator over its output lines, in order.

        follow: keep following new lines until the app ends.
        rank: only lines of this rank.
        node: only lines of this node.
        attempt: only lines of this attempt (default: all attempts).
        since: only lines from this Unix time on.
        grep: only lines that match this regular expression.
        """
        return self.job.logs(
            follow=follow, rank=rank, node=node, attempt=attempt, since=since, grep=grep
        )

    def wait(self, timeout_s: float | None = None) -> JobStatus:
        """Wait until the command has ended on every node, and return the status.

        timeout_s: raise WaitTimeout after this many seconds, but let the app run (default: no limit).
        """
        return self.job.wait(timeout_s)

    def cancel(self, *, now: bool = False, why: str = "", interrupt: bool = False) -> None:
        """End the app. The command gets SIGTERM on every node, and SIGKILL after the grace period.

        now: kill it immediately.
        why: reason for the verdict.
        interrupt: send SIGINT first, as Ctrl-C does.
        """
        self.job.cancel(now=now, why=why, interrupt=interrupt)

    # -- deciding ------------------------------------------------------------------------------

    def _decide(self) -> ResolvedCompute:
        return decide({**self._keywords, "engine": self._engine_name})

    def _prepare(self, wanted: ResolvedCompute) -> Prepared:
        cwd = self._find_folder()
        argv = self._find_command(cwd, is_here=not wanted.has_pods)
        launcher = find_launcher(argv)
        requested = self._procs or wanted.settings.procs or 0
        has_number = launcher is not None and launcher.num_procs is not None
        # one process per GPU, unless the command sets the number
        work = Command(
            argv=argv, procs=requested or (0 if has_number else int(self._keywords["gpus"] or 0))
        )
        settings = make_other(
            wanted.settings,
            name=self.name,
            nodes=self.replicas,
            procs=1 if launcher is None else None,
            env={**self._make_env(wanted), **wanted.env},
        )
        target = WorkTarget(work=work, preload=())
        root = self._root() if self._keywords.get("root") else None
        return prepare_target(target, settings, cwd=cwd, detach=True, pod=wanted.pod, root=root)

    def _make_env(self, wanted: ResolvedCompute) -> dict[str, str]:
        """Return the image's build steps as a default variable. User variables take precedence."""
        return {names.STEPS: json.dumps(to_json(wanted.steps))} if wanted.steps else {}

    def _find(self, engine: Engine, *, is_running: bool) -> Job | None:
        """Return the newest job of this name, or only a running one if `is_running`."""
        for ref in engine.jobs():
            # a compute may have the same name
            if is_made_from(ref.job_id, self.name) and isinstance(engine.plan(ref).work, Command):
                job = Job(engine, ref)
                if not is_running or not job.done():
                    return job
        return None

    def _root(self) -> Path:
        return current_folder() / Path(self._keywords.get("root") or "").expanduser()

    def _find_folder(self) -> Path:
        folder = self._root() / (self._keywords.get("working_dir") or "")
        if not folder.is_dir():
            raise SpecError(
                f"folder not found: {folder}",
                hint="working_dir= is relative to root=, or to the current folder",
            )
        return folder

    def _find_command(self, cwd: Path, *, is_here: bool) -> tuple[str, ...]:
        """Return the command. On local nodes, its program must be on this machine."""
        program = self.argv[0]
        if not is_here or shutil.which(program) or (cwd / program).is_file():
            return self.argv
        # the folder of this Python: a virtual environment need not be on the PATH
        beside = shutil.which(program, path=str(Path(sys.executable).parent))
        if beside is None:
            raise SpecError(
                f"command {program!r} not found on this machine",
                hint="install it, or pass its full path",
            )
        return (beside, *self.argv[1:])


def _split(command: str) -> tuple[str, ...]:
    """Split a command into words, or wrap it in a shell if it needs one."""
    given: object = command
    if not isinstance(given, str):
        raise SpecError(
            f"cli_command must be a string, not {given!r:.60}",
            hint='use cli_command="torchrun --nproc_per_node=8 train.py"',
        )
    words = read_words(command, "cli_command", example='use cli_command="python train.py"')
    return ("sh", "-c", command) if _SHELL.search(command) else tuple(words)


def _count_nodes(command: str, replicas: int | None) -> int:
    """Return `replicas`, else the number of nodes in the command."""
    if replicas is None:
        limits = read_num_nodes(command)
        return limits.max if limits else 1
    if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 1:
        raise SpecError(f"replicas must be a whole number of at least 1, not {replicas!r:.60}")
    check_num_nodes(command, replicas, "replicas=")
    return replicas
