"""Scanner that turns selected paths into a manifest. Reads and hashes files, and caches unchanged ones.

Only this module reads contents for a manifest. It records links and never follows them.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

from windlass.bundle.manifest import FileEntry, Manifest, link_fault, make_manifest, shown
from windlass.errors import BundleError

CHUNK_BYTES = 1 << 20
RACY_NS = 2_000_000_000


class StatCache:
    """In-memory cache of file hashes by the files' stat.

    A file that changed less than two seconds before it was read is not cached. On a file system with coarse
    timestamps it could change again with the same stat. The key includes the change time (ctime), because a
    copy may have an old modification time.
    """

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self.clock = clock
        self._known: dict[str, tuple[tuple[int, ...], str]] = {}

    def find(self, file: Path, status: os.stat_result) -> str | None:
        """Return the hash of `file` if its stat has not changed since it was read."""
        stamp, sha256 = self._known.get(str(file), ((), ""))
        return sha256 if stamp == _stamp(status) else None

    def keep(self, file: Path, status: os.stat_result, sha256: str, *, read_ns: int) -> None:
        """Cache a hash. `status` and `read_ns` must be from before the read."""
        if read_ns - max(status.st_mtime_ns, status.st_ctime_ns) >= RACY_NS:
            self._known[str(file)] = (_stamp(status), sha256)
        else:
            self._known.pop(str(file), None)


def scan(root: Path, paths: Iterable[str], *, cache: StatCache | None = None) -> Manifest:
    """Return the manifest of the current files at `paths` below `root`."""
    root = root.resolve()
    cache = StatCache() if cache is None else cache
    return make_manifest([_read_entry(root, path, cache) for path in paths])


def read_link(root: Path, path: str) -> str:
    """Return the target of the link at `path` as a relative path with `..` only at the start.

    Another form, such as an absolute path inside the root, is rewritten to reach the same file.
    """
    target = str((root / path).readlink())
    if link_fault(path, target) is None:
        return target
    return os.path.relpath(os.path.realpath(root / path), os.path.realpath((root / path).parent))


def open_regular(file: Path) -> BinaryIO:
    """Open a regular file for reading. Never follow a link or wait for a pipe."""
    opened = os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
    if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
        opened.close()
        raise OSError(f"{file} is no longer a regular file")
    return opened


def _read_entry(root: Path, path: str, cache: StatCache) -> FileEntry:
    try:
        status = (root / path).lstat()
        if stat.S_ISLNK(status.st_mode):
            return FileEntry(path=path, link=read_link(root, path))
        return _hash_file(root / path, path, cache)
    except OSError as error:
        raise BundleError(
            f"cannot read {shown(path)}: {error.strerror or error}",
            hint="if it was just deleted or replaced, run it again, else add it to .windlassignore",
        ) from error


def _hash_file(file: Path, path: str, cache: StatCache) -> FileEntry:
    read_ns = cache.clock()
    with open_regular(file) as opened:
        status = os.fstat(opened.fileno())
        sha256, size_bytes = cache.find(file, status), status.st_size
        if sha256 is None:
            # Record the size that was read, because the file may have grown since the stat.
            sha256, size_bytes = _hash(opened)
            if size_bytes == status.st_size:
                cache.keep(file, status, sha256, read_ns=read_ns)
    executable = bool(status.st_mode & stat.S_IXUSR)
    return FileEntry(path=path, size_bytes=size_bytes, sha256=sha256, executable=executable)


def _hash(opened: BinaryIO) -> tuple[str, int]:
    whole, size_bytes = hashlib.sha256(), 0
    while chunk := opened.read(CHUNK_BYTES):
        whole.update(chunk)
        size_bytes += len(chunk)
    return whole.hexdigest(), size_bytes


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)
