"""Whether anything in a project may have changed since somebody last looked.

On Linux the kernel tells (inotify), so that a call after no edit looks at no file. Where it cannot tell, the
answer is always yes. What did change is found by reading the files.
"""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from collections.abc import Iterable
from pathlib import Path

# written, written and closed, moved, made, deleted, changed in mode
_MASK = 0x2 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800 | 0x4
_NONBLOCK = os.O_NONBLOCK
_CLOEXEC = os.O_CLOEXEC
_READ_BYTES = 4096
MAX_FOLDERS = 2000
# file systems whose changes are made on this machine, and so are told: magic numbers of statfs
_LOCAL = frozenset(
    {0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x794C7630, 0xF2F52010, 0x2FC12FC1, 0x52654973}
)


class Watch:
    """Watches folders; `has_changed` answers for the time since it was last asked."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._fd: int | None = None
        self._libc = _load() if _is_local(root) else None
        self._folders: set[str] = set()
        self._is_dirty = True

    def follow(self, folders: Iterable[str]) -> bool:
        """Watch these folders too from now on; whether one of them is new."""
        wanted = set(folders)
        is_new = not wanted <= self._folders
        self._add(wanted)
        return is_new

    def _add(self, wanted: set[str]) -> None:
        if self._libc is None or len(wanted) > MAX_FOLDERS:
            self.close()
            return
        if self._fd is None:
            fd = self._libc.inotify_init1(_NONBLOCK | _CLOEXEC)
            if fd < 0:
                return
            self._fd = fd
            # a user has few of them (128 here and there): one that nobody holds is given back
            self._closing = weakref.finalize(self, os.close, fd)
        for folder in wanted - self._folders:
            if self._libc.inotify_add_watch(self._fd, os.fsencode(folder), _MASK) < 0:
                self.close()
                return
            self._folders.add(folder)

    def has_changed(self) -> bool:
        """Whether something may have changed since the last time this was asked."""
        if self._fd is None:
            return True
        is_dirty, self._is_dirty = self._is_dirty, False
        try:
            while os.read(self._fd, _READ_BYTES):
                is_dirty = True
        except BlockingIOError:
            return is_dirty
        return True

    def close(self) -> None:
        """Watch nothing; everything may have changed from now on."""
        if self._fd is not None:
            self._closing()
            self._fd = None
        self._folders.clear()


def _load() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    return libc if hasattr(libc, "inotify_init1") else None


def _is_local(root: Path) -> bool:
    """Whether the kernel sees every change there: not on a network's file system."""
    if not sys.platform.startswith("linux"):
        return False
    buffer = ctypes.create_string_buffer(256)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(root), buffer) != 0:
        return False
    return int.from_bytes(buffer.raw[:8], sys.byteorder) in _LOCAL
