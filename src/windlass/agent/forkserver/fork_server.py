"""Fork server: a process that imports torch once, then forks ranks on request of the agent.

The process must be single-threaded. A fork copies only the forking thread, so ranks would hang on locks that
another thread held. If a preloaded module started a thread, ranks are spawned instead of forked.
`agent.fork_server_client` defines the requests and events. This module does not use asyncio, because the
ranks would inherit it.

The fork server is also the watchdog of the ranks: it kills them when their lease (`agent.rank_lease`) lapses.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from windlass import processes
from windlass.agent import rank_process
from windlass.agent.fork_server_client import read_request, send_event
from windlass.agent.forkserver import import_snapshot
from windlass.agent.forkserver.openblas import Threads
from windlass.frameworks.framework import load_framework
from windlass.records import to_json
from windlass.wire.job_folder import JobFolder
from windlass.wire.message import Handlers
from windlass.wire.messages.forkserver import (
    CallRankSetup,
    ForkRank,
    ForkStore,
    GuardRanks,
    ModulesImported,
    PreloadModules,
    ProcessExited,
    ProcessStarted,
    StoreOpened,
    StoreStarted,
)

if TYPE_CHECKING:
    from windlass.agent.rank_lease import RankLease

_CHECK_S = 1.0  # interval between checks of the lease while there are ranks
_ORDERS_TO_END = frozenset({signal.SIGTERM, signal.SIGINT})
# Libraries that need no tear-down in a rank. Other modules may be user code, so each rank tears them down.
_SPARED = frozenset({"torch", "numpy"})


class RankPrograms(Protocol):
    """Programs that a fork can run: a rank of a job, or a rank that takes calls."""

    def note_modules(self) -> None: ...

    def prepare(self, framework: str) -> None: ...

    def enter_work(
        self, plan: dict[str, Any], folder: JobFolder, *, rank: int, attempt: int
    ) -> int: ...

    def enter_callee(self, fd: int, about: CallRankSetup) -> int: ...


def serve(
    control_fd: int, preload: Sequence[str], load_programs: Callable[[], RankPrograms]
) -> NoReturn:
    """Import modules, then fork on request until the agent hangs up.

    A fork that has finished also returns through this call.
    """
    rank_process.prepare()
    control = socket.socket(fileno=control_fd)
    processes.become_subreaper()
    signal.signal(signal.SIGTERM, _end_now)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    processes.die_with_parent(os.getppid(), signal.SIGTERM)
    with contextlib.suppress(ConnectionError):
        is_safe = _preload(preload, control, load_programs)
        _ForkServer(control, load_programs(), is_safe=is_safe).loop()
    _end_now()


def _end_now(*_: object) -> NoReturn:
    processes.kill_descendants(os.getpid())
    os._exit(0)


def _preload(
    modules: Sequence[str], control: socket.socket, load_programs: Callable[[], RankPrograms]
) -> bool:
    """Import the modules and report the outcome to the agent. Return whether forking is safe."""
    missing: dict[str, str] = {}
    culprit = ""
    gc.disable()  # saves a tenth of the time of importing torch
    for name in modules:
        is_spared = name.partition(".")[0] in _SPARED
        try:
            with _importing_library() if is_spared else contextlib.nullcontext():
                import_snapshot.import_module(name)
        except Exception as error:  # noqa: BLE001 - a rank fails when user code imports it
            missing[name] = f"{type(error).__name__}: {error}"
        if not culprit and processes.count_threads() > 1:
            culprit = name
    load_programs().note_modules()  # once here instead of once per rank
    gc.freeze()
    gc.enable()
    imported = ModulesImported(
        modules=list(modules),
        missing=missing,
        num_threads=processes.count_threads(),
        culprit=culprit,
    )
    send_event(control, imported)
    return not culprit


@contextlib.contextmanager
def _importing_library() -> Iterator[None]:
    """Hide Windlass's archive from the path, because importlib.metadata would keep it open in ranks."""
    path = list(sys.path)
    sys.path[:] = [entry for entry in path if not entry.endswith(".pyz")]
    try:
        with rank_process.sparing():
            yield
    finally:
        sys.path[:] = [*(entry for entry in path if entry not in sys.path), *sys.path]


class _Guard:
    """Watchdog over the children of this process, which kills them when their lease lapses."""

    def __init__(self, lease: RankLease, *, backstop_s: float) -> None:
        from windlass.agent.rank_lease import KillTimer

        self._lease = lease
        self._timer = KillTimer()
        self._backstop_s = backstop_s

    def check(self) -> float:
        """Kill all children if their lease has lapsed. Return the seconds until the next check."""
        left_s = self._lease.left_s
        if left_s <= 0:
            self._end_below(os.getpid())
            left_s = _CHECK_S
        # if this process is suspended, the kernel kills it, and its children die with it
        self._timer.set_in(left_s + self._backstop_s)
        return min(left_s, _CHECK_S)

    def disarm(self) -> None:
        """Disarm the kernel's timer while there are no children."""
        self._timer.disarm()

    def leave(self) -> None:
        """Close the inherited lease in a child of this process."""
        self._lease.close()

    def _end_below(self, root: int) -> None:
        num_killed = processes.kill_descendants(root, spare=frozenset({os.getpid()}))
        if num_killed:
            sys.stderr.write(
                f"windlass: the agent has not renewed the lease of its ranks; ended {num_killed} "
                "process(es)\n"
            )
            sys.stderr.flush()

    @contextlib.contextmanager
    def substitute(self) -> Iterator[None]:
        """Let another process check the lease while this one is busy."""
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            processes.die_with_parent(server, signal.SIGKILL)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            while True:
                time.sleep(_CHECK_S)
                if self._lease.left_s <= 0:
                    self._end_below(server)
        self._timer.disarm()
        try:
            yield
        finally:
            processes.kill(pid, signal.SIGKILL)


class _ForkServer:
    """Main loop of the fork server: handles requests, forks, and reaps."""

    def __init__(self, control: socket.socket, programs: RankPrograms, *, is_safe: bool) -> None:
        self._control = control
        self._programs = programs
        self._is_safe = is_safe
        self._guard: _Guard | None = None
        self._has_children = False
        self._threads = Threads()
        self._handlers: Handlers = {
            PreloadModules: self._import_more,
            ForkStore: self._fork_store,
            ForkRank: self._fork_rank,
            GuardRanks: self._start_guard,
        }
        self._wake_read, self._wake_write = os.pipe()
        for end in (self._wake_read, self._wake_write):
            os.set_blocking(end, False)
        # without a handler, Python would not write to the wake-up pipe
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

    def loop(self) -> None:
        while True:
            control = self._control.fileno()
            ready, _, _ = select.select([control, self._wake_read], [], [], self._check())
            if self._wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
                self._reap()
            if control in ready:
                request = read_request(self._control)
                if request is None:
                    return
                self._handlers[type(request[0])](*request)

    def _start_guard(self, request: GuardRanks, fds: list[int]) -> None:
        from windlass.agent.rank_lease import RankLease

        self._guard = _Guard(RankLease(fds[0]), backstop_s=request.backstop_s)

    def _check(self) -> float | None:
        """Check the lease of the children. Return the seconds until the next check, or None for no check."""
        if self._guard is None:
            return None
        if self._has_children:
            return self._guard.check()
        self._guard.disarm()
        return None

    def _import_more(self, request: PreloadModules, _fds: list[int]) -> None:
        guard = self._guard if self._has_children else None
        with contextlib.nullcontext() if guard is None else guard.substitute():
            self._is_safe &= _preload(request.modules, self._control, lambda: self._programs)
        self._threads = Threads()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._has_children = False
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            send_event(self._control, ProcessExited(pid=pid, code=code))

    def _fork_store(self, request: ForkStore, fds: list[int]) -> None:
        pid = self._fork(self._enter_store, request, fds)
        send_event(self._control, StoreStarted(attempt=request.attempt, pid=pid))

    def _fork_rank(self, request: ForkRank, fds: list[int]) -> None:
        if self._is_safe:
            kept = {k: v for k, v in os.environ.items() if k not in request.forget}
            self._threads.set_for({**kept, **request.env})
        pid = self._fork(self._enter_rank, request, fds)
        started = ProcessStarted(rank=request.rank, attempt=request.attempt, pid=pid)
        send_event(self._control, started)

    def _fork(self, enter: Callable[..., int], request: Any, fds: list[int]) -> int:
        server = os.getpid()
        self._programs.prepare(request.framework)
        # blocked until the child has its handlers, so that a signal right after the fork is not lost
        signal.pthread_sigmask(signal.SIG_BLOCK, _ORDERS_TO_END)
        pid = os.fork()
        if pid == 0:
            self._become(enter, server, request, fds)
        self._has_children = True
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ORDERS_TO_END)
        for fd in fds:
            os.close(fd)
        return pid

    def _become(self, enter: Callable[..., int], *args: Any) -> NoReturn:
        """Run the child, then unwind to the top of the process, so that it exits like any interpreter."""
        try:
            code = enter(*args)
        except KeyboardInterrupt:  # arrived before any of the user's code ran
            os._exit(128 + signal.SIGINT)
        except BaseException as error:  # noqa: BLE001 - no exception may reach the server's loop
            sys.stderr.write(f"windlass: cannot start this rank: {type(error).__name__}: {error}\n")
            sys.stderr.flush()
            os._exit(126)
        rank_process.leave(code)

    def _leave_server(self, server: int) -> None:
        """Detach a new child from the server: start a session, reset signals and close inherited files.

        The kernel kills the child if the server dies.
        """
        os.setsid()
        processes.die_with_parent(server, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ORDERS_TO_END)
        os.close(self._wake_read)
        os.close(self._wake_write)
        if self._guard is not None:
            self._guard.leave()

    def _enter_store(self, server: int, request: ForkStore, fds: list[int]) -> NoReturn:
        self._leave_server(server)
        if fds:
            _connect_streams(fds)

        def report(port: int, **more: str) -> None:
            send_event(self._control, StoreOpened(attempt=request.attempt, port=port, **more))
            self._control.close()

        framework = load_framework(request.framework)
        if framework.cluster is not None and request.cluster is not None:
            try:
                framework.cluster.run(request.address, request.port, request.cluster, report)
            except Exception as error:  # the lead needs the reason, not only the exit
                report(0, error=f"{framework.name}: {type(error).__name__}: {error}")
                raise
        store = framework.store
        if store is None:
            report(0)
            os._exit(0)
        store.serve(request.address, request.port, report)

    def _enter_rank(self, server: int, request: ForkRank, fds: list[int]) -> int:
        self._leave_server(server)
        _connect_streams(fds)
        self._control.close()
        _set_environment(request.env, forgotten=request.forget)
        if request.about is not None:
            return self._enter_callee(fds[2], request.about)
        plan, folder = load_job(request.plan)
        if plan["cwd"]:
            os.chdir(plan["cwd"])
        is_python = plan["work"]["kind"] != "command"  # a command replaces the process anyway
        if is_python and (plan["start"] == "spawn" or not self._is_safe):
            rank = (str(request.rank), str(request.attempt))
            os.execv(sys.executable, [sys.executable, sys.argv[0], "rank", request.plan, *rank])
        return self._programs.enter_work(plan, folder, rank=request.rank, attempt=request.attempt)

    def _enter_callee(self, channel: int, about: CallRankSetup) -> int:
        if about.start == "spawn" or not self._is_safe:
            os.set_inheritable(channel, True)
            text = json.dumps(to_json(about))
            argv = [sys.executable, sys.argv[0], "callee", str(channel), text]
            os.execv(sys.executable, argv)
        return self._programs.enter_callee(channel, about)


def load_job(plan_path: str) -> tuple[dict[str, Any], JobFolder]:
    """Return a rank's plan and the job's folder, which holds the plan.

    The plan is plain JSON. The agent has validated it, and more imports would delay the first rank.
    """
    folder = JobFolder(Path(plan_path).parent)
    return json.loads(folder.plan.read_bytes()), folder


def _connect_streams(fds: list[int]) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (fds[0], 1), (fds[1], 2)):
        os.dup2(source, target)
        os.close(source)


def _set_environment(env: Mapping[str, str], *, forgotten: Sequence[str]) -> None:
    for name in forgotten:
        os.environ.pop(name, None)
    os.environ.update(env)
