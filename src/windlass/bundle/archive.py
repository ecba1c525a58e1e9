"""Writing a delta as an archive: gzip over tar, the same bytes for the same content.

The first member is the delta as JSON; the others are the contents of its files, in its order.
Links, removals and modes are in the delta alone, so the reader (`extract`) never has to believe a
tar header. Runs on the client only.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import BinaryIO

from windlass import records
from windlass.bundle.extract import FILES_PREFIX, HEADER_NAME
from windlass.bundle.manifest import Delta, FileEntry
from windlass.bundle.paths import shown
from windlass.bundle.scan import open_regular
from windlass.errors import BundleError


def write_archive(root: Path, delta: Delta, out: BinaryIO, *, level: int = 6) -> None:
    """Write `delta`, with the contents of its files below `root`, to `out`.

    A file that is no longer what its entry says is a BundleError; what was written until then does
    not extract.
    """
    header = json.dumps(records.to_json(delta), sort_keys=True).encode()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=out, mtime=0, compresslevel=level) as packed,
        tarfile.TarFile(
            fileobj=packed, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8"
        ) as tar,
    ):
        tar.addfile(_member(HEADER_NAME, len(header)), io.BytesIO(header))
        for entry in delta.written:
            if entry.link is None:
                _add_file(tar, root, entry)


class _Hashing(io.RawIOBase):
    """A reader that hashes what passes through it."""

    def __init__(self, opened: BinaryIO) -> None:
        self._opened = opened
        self.whole = hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        chunk = self._opened.read(size)
        self.whole.update(chunk)
        return chunk


def _add_file(tar: tarfile.TarFile, root: Path, entry: FileEntry) -> None:
    try:
        with open_regular(root / entry.path) as opened:
            passing = _Hashing(opened)
            tar.addfile(_member(FILES_PREFIX + entry.path, entry.size_bytes), passing)
            grown = passing.read(1)
    except OSError as error:
        raise _changed(entry, str(error.strerror or error)) from error
    if grown:
        raise _changed(entry, "it has grown")
    if passing.whole.hexdigest() != entry.sha256:
        raise _changed(entry, "its content is another")


def _changed(entry: FileEntry, how: str) -> BundleError:
    return BundleError(
        f"{shown(entry.path)} changed while it was being packed: {how}",
        hint="run it again; a file that is written all the time belongs in .windlassignore",
    )


def _member(name: str, size_bytes: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size_bytes
    return member
