"""A folder that is made once, however many processes want it at the same time.

One takes the lock, makes the folder under another name and renames it; the others wait and find it whole. A
lock dies with its process (flock), and where a file system has no locks each makes its own and the first
rename wins: more work, never a wrong result. Needs no process group. Called by token_cache.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from windlass.errors import SpecError, WaitTimeout
from windlass.waiting import wait_until

logger = logging.getLogger(__name__)

_STALE_S = 3600.0  # a folder that nobody has written to for so long was left behind
_NO_ROOM = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST),
    *(errno.ENOSPC, errno.EDQUOT, errno.ENOENT, errno.ENAMETOOLONG),
)
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)


def make_once(
    folder: Path,
    make: Callable[[Path], None],
    *,
    is_whole: Callable[[Path], bool],
    timeout_s: float = 86400.0,
) -> bool:
    """Have `folder` there and whole; whether it was made by this very call."""
    if is_whole(folder):
        return False
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder.parent / f".{folder.name}.lock", str(folder), timeout_s):
            return False if is_whole(folder) else _make(folder, make, is_whole)
    except OSError as error:
        if error.errno not in _NO_ROOM or not _is_within(error.filename, folder.parent):
            raise
        raise SpecError(
            f"nothing can be written to {folder.parent}: {error.strerror}",
            hint="name a folder that this user can write, on a disk with room",
        ) from error


def _make(folder: Path, make: Callable[[Path], None], is_whole: Callable[[Path], bool]) -> bool:
    _remove_leftovers(folder)
    unfinished = folder.parent / f"{folder.name}.making-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        make(unfinished)
        return _put_in_place(unfinished, folder, is_whole)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _is_within(name: object, folder: Path) -> bool:
    """Whether an error is about this folder; one without a name is of a file that is open: no room."""
    if not isinstance(name, str | bytes):
        return True
    path, folder = Path(os.fsdecode(name)).absolute(), folder.absolute()
    return path.is_relative_to(folder) or folder.is_relative_to(path)


def _put_in_place(unfinished: Path, folder: Path, is_whole: Callable[[Path], bool]) -> bool:
    if folder.exists() and not is_whole(folder):
        logger.warning("%s is not whole and is made again", folder)
        shutil.rmtree(folder, ignore_errors=True)
    try:
        unfinished.rename(folder)
    except OSError:
        if not is_whole(folder):  # else another machine was faster
            raise
        return False
    return True


def _remove_leftovers(folder: Path) -> None:
    for left in folder.parent.glob(f"{folder.name}.making-*"):
        newest_s = max((p.stat().st_mtime for p in (left, *left.glob("*"))), default=0.0)
        if time.time() - newest_s > _STALE_S:
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _lock(path: Path, purpose: str, timeout_s: float) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if not wait_until(
            lambda: _try_lock(descriptor, path),
            timeout_s=timeout_s,
            every_s=0.1,
            say=lambda s: logger.warning(
                "waiting for %s, made by another process: %.0f s", purpose, s
            ),
        ):
            raise WaitTimeout(
                f"{purpose} was not made by another process within {timeout_s:.0f} s",
                hint=f"see whether that process still runs (it holds {path}), and start again",
            )
        yield
    finally:
        with suppress(OSError):  # closing alone would leave it to a child that was forked meanwhile
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _try_lock(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        logger.warning("%s: no locks on this file system, so others may do the same work", path)
    return True
