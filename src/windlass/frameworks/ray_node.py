"""One node of a Ray cluster: starts Ray's own processes on this node and serves until they end.

It runs in a fork of the fork server and is imported only when a cluster opens. `frameworks.ray_flags` makes
the flags of `ray start`.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from windlass import names, processes
from windlass.errors import count_noun
from windlass.frameworks import python_ranks
from windlass.frameworks.ray_flags import (
    AGENT_PORT,
    FIRST_WITH_TOKENS,
    choose_dashboard_port,
    make_auth,
    make_flags,
    read_version,
)

if TYPE_CHECKING:
    from windlass.frameworks.framework import ReportCluster
    from windlass.wire.messages.forkserver import ClusterNode


_ADDRESS_FILE = "ray_current_cluster"  # Ray writes it when all processes of a node are up
VITAL = ("gcs_server", "raylet")  # processes that a node cannot run without
_START_S = 180.0
_POLL_S = 0.05
_DASHBOARD_NICE = 19
_DASHBOARD = b"dashboard.py"
_LOG_MONITOR = b"log_monitor.py"
_STARTED = b"Ray runtime started"
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_CONNECT_S = 2.0
_AGENT_S = 15.0
_PAUSE_S = 5.0  # how long helpers stay paused: most functions have started by then
_MAX_FOLDER = 107 - len("/session_2026-01-01_00-00-00_000000_1000000/sockets/plasma_store")
_TRIES = 3
# Another process may take a free port first, and Ray's own limit of 30 s may be too short on a busy machine.
_RETRYABLE = ("port", "timed out", "No node info")


class RayStart:
    """One `ray start` process.

    With `pauses`, it pauses the dashboard and other helpers during the start. Only versions that do not wait
    for their dashboard allow this.
    """

    def __init__(
        self, flags: list[str], folder: Path, *, pauses: bool, joins: bool = False
    ) -> None:
        self._folder = folder
        self._log = folder / "start.log"
        self._pauses = pauses
        self._joins = joins
        self._paused: set[int] = set()  # pids
        parent = os.getpid()
        # otherwise Ray waits for the paused dashboard
        env = {"RAY_DASHBOARD_STARTUP_TIMEOUT_S": "0"} if pauses else {}
        with self._log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *flags],
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: processes.die_with_parent(parent, signal.SIGKILL),
            )

    def wait(self) -> str:
        """Wait until the node is up. Return an empty string, or why it failed after removing its files."""
        until_s = time.monotonic() + _START_S
        while self.process.poll() is None and time.monotonic() < until_s:
            if read_address(self._folder)[1] or self._has_joined():
                return ""
            if self._pauses:
                self._pause_helpers()
            time.sleep(_POLL_S)
        is_late = self.process.poll() is None
        self.process.kill()
        self.process.wait()
        for session in self._folder.glob("session_*"):
            shutil.rmtree(session, ignore_errors=True)
        return f"it was not up after {_START_S:g} s" if is_late else self._read_reason()

    def _has_joined(self) -> bool:
        """Return whether the log reports that this worker joined.

        Before Ray 2.53, a worker writes its address into the head's folder, even with its own `--temp-dir`.
        """
        return self._joins and _STARTED in self._log.read_bytes()

    def release(self) -> None:
        """Resume the paused processes. The dashboard runs at the lowest priority."""
        while self._paused:
            with contextlib.suppress(OSError):
                os.kill(self._paused.pop(), signal.SIGCONT)

    def find_vital(self) -> list[int]:
        return [
            pid for pid in self._find_children() if _read(pid, "comm").decode().strip() in VITAL
        ]

    def _find_children(self) -> list[int]:
        parents = processes.read_parents()
        return [pid for pid, parent in parents.items() if parent == self.process.pid]

    def _pause_helpers(self) -> None:
        own = _read(self.process.pid, "cmdline")
        for pid in self._find_children():
            what = _read(pid, "cmdline")
            program = os.path.basename(what.split(b"\0")[0])
            is_fork = what == own  # a fork that has not called exec yet
            is_helper = program.startswith(b"python") and _LOG_MONITOR not in what
            if pid in self._paused or is_fork or not is_helper:
                continue
            with contextlib.suppress(OSError):
                if _DASHBOARD in what:
                    os.setpriority(os.PRIO_PROCESS, pid, _DASHBOARD_NICE)
                os.kill(pid, signal.SIGSTOP)
                self._paused.add(pid)

    def _read_reason(self) -> str:
        text = _COLOR.sub("", self._log.read_text(errors="replace"))
        lines = [line.strip() for line in text.splitlines()]
        lines = [line for line in lines if line and not line.startswith(("File ", "^", "raise "))]
        return " ".join(lines[-2:])[-400:] or "it printed nothing"


def read_address(folder: Path) -> tuple[str, int]:
    """Return the cluster's host and port, or port 0 until a started node has written them."""
    with contextlib.suppress(OSError, ValueError):
        host, _, port = (folder / _ADDRESS_FILE).read_text().strip().rpartition(":")
        return host, int(port)
    return "", 0


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def run_node(address: str, port: int, node: ClusterNode, report: ReportCluster) -> NoReturn:
    """Run one node of a Ray cluster. Report its address, then serve. Exit if it cannot start."""
    version = python_ranks.find_version("ray")
    error = find_fault(version, node)
    if error:
        report(0, error=error)
        os._exit(1)
    _prepare_process(node)
    if node.joins:
        _wait_for_head(address, node, port)
    folder = _make_folder(node)
    pauses = not node.joins and read_version(version) >= FIRST_WITH_TOKENS
    for _ in range(_TRIES):
        dashboard_port = choose_dashboard_port(node)
        flags = make_flags(address, port, node, folder, dashboard_port=dashboard_port)
        started = RayStart(flags, folder, pauses=pauses, joins=node.joins)
        error = started.wait()
        if not any(sign in error for sign in _RETRYABLE):
            break
    if error:
        report(0, error=f"Ray could not start on node {node.index}: {error}")
        os._exit(1)
    host, own_port = read_address(folder)
    if node.joins and not own_port:
        host, own_port = address, port
    dashboard = f"127.0.0.1:{dashboard_port}" if dashboard_port else ""
    report(own_port, address=host, note=make_note(version, node), dashboard=dashboard)
    _wait_for_end(started)
    os._exit(1)


# -- requirements --------------------------------------------------------------------------------


def find_fault(version: str, node: ClusterNode) -> str:
    """Return why this node cannot provide the requested Ray cluster, or an empty string."""
    where = f"node {node.index}"
    if not version:
        return (
            f"Ray is not installed on {where} ({sys.executable}) -> "
            "run `pip install 'ray[default]'` there, or use an image that has it: images.ray(TAG)"
        )
    if node.version and read_version(version)[:1] != read_version(node.version)[:1]:
        return (
            f"the client has Ray {node.version}, but {where} has {version}: they may be unable to unpickle "
            f"each other's objects -> use one version: `pip install ray=={version}`, or another image"
        )
    if node.own_address or node.pretends_gpus or node.size.gpus <= (here := count_gpus()):
        return ""  # Kubernetes schedules a pod only where its GPUs are free
    return (
        f"{where} needs {count_noun(node.size.gpus, 'GPU')} but has {here} -> "
        "request fewer, or pretend to have them: pretend_gpus=True, --pretend-gpus"
    )


def count_gpus() -> int:
    visible = os.environ.get(names.CUDA_VISIBLE_DEVICES)
    if visible is not None:
        return len([one for one in visible.split(",") if one.strip() not in ("", "-1")])
    return len(glob.glob("/dev/nvidia[0-9]*"))


def make_note(version: str, node: ClusterNode) -> str:
    """Return warnings about this node's version and GPUs, or an empty string."""
    notes = []
    if not node.index and read_version(version) < FIRST_WITH_TOKENS:
        notes.append(f"Ray {version} accepts clients without a token (2.52 and later require one)")
    if not node.index and node.version and read_version(version) != read_version(node.version):
        notes.append(f"the client has Ray {node.version}, the nodes have {version}")
    if node.pretends_gpus and node.size.gpus:
        notes.append(f"node {node.index} pretends to have {count_noun(node.size.gpus, 'GPU')}")
    return "; ".join(notes)


# -- starting ----------------------------------------------------------------------------------


def _prepare_process(node: ClusterNode) -> None:
    for name in node.forget:
        os.environ.pop(name, None)
    if node.pretends_gpus:  # Ray would limit its GPU count to the visible devices
        os.environ.pop(names.CUDA_VISIBLE_DEVICES, None)
    os.environ.update(make_auth(node.secret))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["PYTHONUNBUFFERED"] = "1"
    with contextlib.suppress(OSError):
        os.chdir(node.cwd or "/")


def _wait_for_head(address: str, node: ClusterNode, port: int) -> None:
    """Wait until the head accepts connections. The agent ends this process if the head fails.

    `ray start` does not find a head whose agents are not up yet, and it retries only after two seconds.
    """
    while not _is_open(address, port):
        time.sleep(_POLL_S)
    until_s = time.monotonic() + _AGENT_S
    while node.own_address and not _is_open(address, AGENT_PORT) and time.monotonic() < until_s:
        time.sleep(_POLL_S)


def _is_open(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), _CONNECT_S).close()
    except OSError:
        return False
    return True


def _make_folder(node: ClusterNode) -> Path:
    """Make the folder for Ray's sockets, and return a path to it that is short enough for sockets.

    If the folder's own path is too long, the returned path is a symbolic link.
    """
    real = Path(node.folder) / f"r{node.index}-{os.getpid()}"
    real.mkdir(mode=0o700, parents=True)
    if len(os.fsencode(real)) <= _MAX_FOLDER:
        return real
    link = f"r{zlib.crc32(os.fsencode(real)):08x}"
    short = real.parent.parent / link
    if len(os.fsencode(short)) > _MAX_FOLDER:
        short = Path("/tmp") / link  # noqa: S108 - only a name for `real`
    for old in short.parent.glob("r????????"):  # links of clusters that have ended
        if old.is_symlink() and not old.exists():
            with contextlib.suppress(OSError):
                old.unlink()
    short.symlink_to(real)
    return short


# -- ending ------------------------------------------------------------------------------------


def _wait_for_end(started: RayStart) -> None:
    """Wait until Ray's node ends, and resume the paused processes meanwhile.

    Watches Ray's processes directly: `ray start` checks only once per second, and drivers notice sooner.
    """
    watched = []
    for pid in (started.process.pid, *started.find_vital()):
        # an error means that the process has exited or that this system has no pidfd
        with contextlib.suppress(OSError, AttributeError):
            watched.append(os.pidfd_open(pid))
    if watched and not select.select(watched, [], [], _PAUSE_S)[0]:
        started.release()
        select.select(watched, [], [])
    elif not watched:
        started.release()
        started.process.wait()
