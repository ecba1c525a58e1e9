"""Functions that the contract suite runs in ranks. They are importable, so they are sent by reference.

No function imports torch, because torch would then be preloaded for every job, which takes seconds.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import windlass as wl


def echo(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


def rank() -> int:
    return int(os.environ["RANK"])


def environment(names: list[str]) -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in names}


def where_am_i() -> dict[str, Any]:
    return {
        "thread": threading.current_thread() is threading.main_thread(),
        "main": sys.modules["__main__"].__name__,
        "cwd": os.getcwd(),
        "stdin": sys.stdin.read(),
    }


class Plain(Exception):
    """An exception with more attributes than a message."""

    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(code)
        self.code = code
        self.detail = detail

    def __reduce__(self) -> Any:
        return (_plain, (self.code, self.detail))


def _plain(code: int, detail: str) -> Plain:
    return Plain(code, detail=detail)


class Awkward(Exception):
    """An exception that pickles but cannot be rebuilt."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def fail(how: str, on_rank: int = 0, hang: bool = True) -> str:
    """Fail in one way on one rank, while the others wait for a minute."""
    if rank() == on_rank:
        _fail(how)
    if hang:
        time.sleep(60)
    return how


def _fail(how: str) -> None:
    if how == "raise":
        raise ValueError("boom é")
    if how == "plain":
        raise Plain(7, detail="seven")
    if how == "awkward":
        raise Awkward(1, 2)
    if how == "local class":

        class Local(Exception):
            pass

        raise Local("made here")
    if how == "lock":
        error = RuntimeError("holds a lock")
        error.lock = threading.Lock()
        raise error
    if how == "chained":
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise RuntimeError("outer") from inner
    if how == "memory":
        raise MemoryError("too much")
    if how == "exit 3":
        sys.exit(3)
    if how == "exit text":
        sys.exit("bad config")
    if how == "_exit 0":
        os._exit(0)
    if how == "_exit 5":
        os._exit(5)
    if how == "interrupt":
        raise KeyboardInterrupt
    os.kill(os.getpid(), getattr(signal, how))


def leave_early() -> int:
    """Return immediately on rank 0 and later on the others, which is not a failure."""
    if rank() != 0:
        wait_for_file(os.environ["FLAG"])
    return rank()


_open_files: list[Any] = []


def offer_a_port_and_return(folder: str, fail: bool) -> str:
    """Listen on rank 0 and return. Connect from rank 1 after `go` exists, until rank 0 closes its port."""
    path = Path(folder)
    if rank() == 0:
        listening = socket.create_server(("0.0.0.0", 0))
        _open_files.extend([listening, (path / "left-open").open("w")])
        _open_files[-1].write("x")
        atexit.register((path / "ended").write_text, "x")
        _write_whole(path / "port", str(listening.getsockname()[1]))
        return "offered"
    wait_for_file(path / "go")
    place = (os.environ["MASTER_ADDR"], int((path / "port").read_text()))
    deadline = time.monotonic() + 20.0
    try:
        socket.create_connection(place, timeout=10).close()
        while (path / "ended").exists() and time.monotonic() < deadline:
            socket.create_connection(place, timeout=10).close()
    except (ConnectionRefusedError, ConnectionResetError):  # reset if it is just closing
        return "refused"
    if fail:
        raise ValueError("after the other was done")
    return "connected"


def _write_whole(path: Path, text: str) -> None:
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.rename(path)


def wait_for_file(path: str | Path, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not os.path.exists(path):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_for_signal(path: str) -> None:
    """Wait for a signal, and record which one arrived in a file beside `path`."""
    mark = f"{path}-{rank()}"

    def on_term(*_: Any) -> None:
        Path(f"{mark}-by-SIGTERM").touch()
        sys.exit(1)

    signal.signal(signal.SIGTERM, on_term)
    try:
        Path(f"{mark}-started").touch()
        time.sleep(60)
    except KeyboardInterrupt:
        Path(f"{mark}-by-KeyboardInterrupt").touch()
        raise


def hang() -> None:
    time.sleep(600)


def spawn_children_and_hang(flag: str) -> None:
    """Start children of every kind: in the process group, in a separate session, and double-forked."""
    subprocess.Popen(["sleep", "601"])
    subprocess.Popen(["sleep", "602"], start_new_session=True)
    subprocess.Popen(["sh", "-c", "setsid sleep 603 & exit 0"]).wait()
    Path(f"{flag}-{rank()}").touch()
    time.sleep(600)


def spawn_children_and_fail_once(mark: str) -> list[str]:
    """Start children and fail in attempt 0. In attempt 1, return the children that are still running."""
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        subprocess.Popen(["sleep", mark])
        subprocess.Popen(["sleep", mark], start_new_session=True)
        subprocess.Popen(["sh", "-c", f"setsid sleep {mark} & exit 0"]).wait()
        sys.exit(1)
    return [found for found in _command_lines() if mark in found.split()]


def _command_lines() -> list[str]:
    """Return the command lines of running `sleep` processes. Zombies have none."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip())
    return [line for line in found if line.startswith("sleep ")]


def stubborn(flag: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(flag).touch()
    print("stubborn", flush=True)
    time.sleep(600)


def save_on_term(flag: str, saved: str) -> None:
    def save(*_: object) -> None:
        Path(saved).write_text("saved")
        sys.exit(0)

    signal.signal(signal.SIGTERM, save)
    Path(flag).touch()
    time.sleep(600)


def fail_once(folder: str) -> int:
    """Fail on rank 1 in attempt 0, and return the attempt."""
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    Path(folder, f"{attempt}-{rank()}").touch()
    if rank() == 1 and attempt == 0:
        for other in range(int(os.environ["WORLD_SIZE"])):
            wait_for_file(f"{folder}/0-{other}")
        os.kill(os.getpid(), signal.SIGKILL)
    if attempt == 0:
        time.sleep(60)
    return attempt


def print_lines(num_lines: int) -> None:
    for index in range(num_lines):
        print(f"line {index} of rank {rank()}")
    print("to stderr", file=sys.stderr)


def report_steps(total: int, flag: str = "") -> None:
    for step in range(1, total + 1):
        wl.report(step=step, total=total, loss=1.0 / step, bad=float("nan"))
    if flag:
        wait_for_file(flag)


def report_to_a_sleeping_agent() -> None:
    """Report steps and exit while the agent is stopped. A child resumes the agent after that exit."""
    me, agent = os.getpid(), _read_parent(os.getppid())
    if os.fork() == 0:
        while _read_parent(me):
            time.sleep(0.01)
        os.kill(agent, signal.SIGCONT)
        os._exit(0)
    os.kill(agent, signal.SIGSTOP)
    for step in range(1, 8):
        wl.report(step=step, total=step)  # the last step is sent immediately


def _read_parent(pid: int) -> int:
    """Return the parent's pid, or 0 if the process does not exist."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def wait_and_return(flag: str) -> str:
    wait_for_file(flag)
    return "done"


def return_bytes(folder: str, num_bytes: int) -> bytes:
    """Return bytes once `go` exists in the folder."""
    Path(folder, "up").touch()
    wait_for_file(Path(folder, "go"))
    return b"v" * num_bytes
