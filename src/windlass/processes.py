"""Processes of this machine: functions that find a process's descendants and kill them.

Uses only kernel features: subreaper, parent-death signal and /proc. Systems without them (macOS) use
process groups. This module knows nothing about ranks or jobs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    import ctypes

    return bool(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0)


def become_subreaper() -> bool:
    """Adopt orphaned grandchildren in place of init. Return whether the system supports that."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


@contextlib.contextmanager
def not_reaping() -> Iterator[None]:
    """Let init adopt newly orphaned grandchildren for now. Use only briefly, in a subreaper."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 0)
    try:
        yield
    finally:
        become_subreaper()


def die_with_parent(parent: int, signum: int) -> None:
    """Ask the kernel to send this process `signum` when `parent` ends for any reason."""
    _prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:  # the parent ended before the call above
        os.kill(os.getpid(), signum)


def count_threads() -> int:
    """Return the number of threads of this process, or 1 if the system does not report it."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 1


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def read_parents() -> dict[int, int]:
    """Return the parent of every process of this machine."""
    parents = {}
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name in brackets may contain brackets and spaces, so fields start after the last bracket.
            fields = _read(f"/proc/{entry}/stat").rpartition(b")")[2].split()
            if fields[0] != b"Z":
                parents[int(entry)] = int(fields[1])
    return parents


def find_descendants(root: int) -> set[int]:
    """Return every live process below `root`, without `root` itself."""
    children: dict[int, list[int]] = {}
    for pid, parent in read_parents().items():
        children.setdefault(parent, []).append(pid)
    descendants: set[int] = set()
    todo = [root]
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in descendants:
                descendants.add(child)
                todo.append(child)
    return descendants


def read_session(pid: int) -> int:
    """Return the session of a process, or 0 if it no longer exists."""
    try:
        return int(_read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[3])
    except (OSError, ValueError, IndexError):
        return 0


def is_marked(pid: int, mark: bytes) -> bool:
    """Return whether a process was started with `mark` (`NAME=value`) in its environment."""
    try:
        return mark in _read(f"/proc/{pid}/environ").split(b"\0")
    except OSError:
        return False


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def kill(pid: int, signum: int) -> None:
    """Send a signal to a process. Do nothing if it no longer exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)


def kill_group(pid: int, signum: int) -> None:
    """Send a signal to a process group. Do nothing if it no longer exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signum)


def kill_descendants(root: int, *, spare: frozenset[int] = frozenset()) -> int:
    """Send SIGKILL to all descendants of `root` until none remains. Return how many were killed.

    A process that forks while it is being killed leaves a child for the next round.
    """
    killed: set[int] = set()
    for _ in range(100):
        alive = find_descendants(root) - spare - killed
        if not alive:
            break
        for pid in alive:
            kill(pid, signal.SIGKILL)
        killed |= alive
    return len(killed)


def read_oom_kills() -> int:
    """Return how many processes the kernel's OOM killer has killed since boot."""
    try:
        for line in _read("/proc/vmstat").splitlines():
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def find_marked(mark: str) -> list[int]:
    """Return this user's processes that have `mark`, a NAME=value, in their environment."""
    wanted = mark.encode()
    return [pid for pid in read_parents() if is_marked(pid, wanted)]
