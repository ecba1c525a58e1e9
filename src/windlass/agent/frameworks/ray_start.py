"""`ray start --block`, until its node is up: what makes it one goes first, the rest waits.

A head also has an autoscaler's monitor, a server for Ray's clients, and a dashboard of ten processes: more
work for a small machine than all that a first task needs. They are held until the user's work has had a
moment to begin; from then on the dashboard gives way to it. What reads the logs of tasks is never held.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from windlass.agent.node import processes

_ADDRESS_FILE = "ray_current_cluster"  # written when all that a node has is up
VITAL = ("gcs_server", "raylet")  # without which the node is none
_START_S = 180.0
_POLL_S = 0.05
_PAGE_NICE = 19
_PAGE = b"dashboard.py"
_READER = b"log_monitor.py"
_STARTED = b"Ray runtime started"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class RayStart:
    """One `ray start`. With `holds`, of a version that can do without its dashboard."""

    def __init__(self, flags: list[str], folder: Path, *, holds: bool, joins: bool = False) -> None:
        self._folder = folder
        self._log = folder / "start.log"
        self._holds = holds
        self._joins = joins
        self._held: set[int] = set()  # pids
        parent = os.getpid()
        # else Ray waits for it, and with it everybody else
        env = {"RAY_DASHBOARD_STARTUP_TIMEOUT_S": "0"} if holds else {}
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
        """Until the node is up: empty; else why it is not, and nothing is left of it."""
        until_s = time.monotonic() + _START_S
        while self.process.poll() is None and time.monotonic() < until_s:
            if read_address(self._folder)[1] or self._says_that_it_joined():
                return ""
            if self._holds:
                self._hold()
            time.sleep(_POLL_S)
        is_late = self.process.poll() is None
        self.process.kill()
        self.process.wait()
        for session in self._folder.glob("session_*"):
            shutil.rmtree(session, ignore_errors=True)
        return f"it was not up after {_START_S:g} s" if is_late else self._read_reason()

    def _says_that_it_joined(self) -> bool:
        """Before 2.53 a worker writes its address into the head's folder, wherever it was told to."""
        return self._joins and _STARTED in self._log.read_bytes()

    def release(self) -> None:
        """What was held may start, and the dashboard have what others leave of the machine."""
        while self._held:
            with contextlib.suppress(OSError):
                os.kill(self._held.pop(), signal.SIGCONT)

    def find_vital(self) -> list[int]:
        return [
            pid for pid in self._find_children() if _read(pid, "comm").decode().strip() in VITAL
        ]

    def _find_children(self) -> list[int]:
        parents = processes.read_parents()
        return [pid for pid, parent in parents.items() if parent == self.process.pid]

    def _hold(self) -> None:
        own = _read(self.process.pid, "cmdline")
        for pid in self._find_children():
            what = _read(pid, "cmdline")
            program = os.path.basename(what.split(b"\0")[0])
            is_none_yet = what == own  # it was forked, and will be another program
            is_meant = program.startswith(b"python") and _READER not in what
            if pid in self._held or is_none_yet or not is_meant:
                continue
            with contextlib.suppress(OSError):
                if _PAGE in what:
                    os.setpriority(os.PRIO_PROCESS, pid, _PAGE_NICE)
                os.kill(pid, signal.SIGSTOP)
                self._held.add(pid)

    def _read_reason(self) -> str:
        text = _COLOUR.sub("", self._log.read_text(errors="replace"))
        lines = [line.strip() for line in text.splitlines()]
        lines = [line for line in lines if line and not line.startswith(("File ", "^", "raise "))]
        return " ".join(lines[-2:])[-400:] or "it said nothing"


def read_address(folder: Path) -> tuple[str, int]:
    """Where the cluster is, once a node that is up has written it; port 0 before, and while it writes."""
    with contextlib.suppress(OSError, ValueError):
        host, _, port = (folder / _ADDRESS_FILE).read_text().strip().rpartition(":")
        return host, int(port)
    return "", 0


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
