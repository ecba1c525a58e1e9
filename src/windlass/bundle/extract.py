"""Reading an archive into a folder: nothing is changed before all of it has been checked.

Runs in the node, standard library only, and must not import what only the client has. The archive
is not believed: names, links, sizes and hashes are checked against one rule (`paths`, `manifest`),
and contents wait in a staging folder until the last of them has arrived whole.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from windlass import records
from windlass.bundle.manifest import EMPTY, VERSION, Delta, FileEntry, Manifest, apply_delta
from windlass.bundle.paths import shown
from windlass.bundle.safe_write import OpenFolder
from windlass.errors import BundleError, ProtocolError

HEADER_NAME = "delta.json"
FILES_PREFIX = "files/"
MAX_BYTES = 2 << 30
_HEADER_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20
# A member costs its headers and padding besides its content; long names make a few more blocks.
_MEMBER_BYTES = 16 << 10
_REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE)


def extract(
    archive: BinaryIO,
    dest: Path,
    *,
    base: Manifest = EMPTY,
    expected: str | None = None,
    max_bytes: int = MAX_BYTES,
) -> Manifest:
    """Apply `archive` to `dest`, which holds `base`; the manifest of what is there afterwards.

    `expected` is the digest the sender named over a trusted road; `max_bytes` bounds what is
    written. On an error in the archive `dest` is as before. Only files of `base` are ever removed.
    """
    with _told(dest):
        dest.mkdir(parents=True, exist_ok=True)
        metered = _Metered(gzip.GzipFile(fileobj=archive, mode="rb"), _HEADER_BYTES)
        tar = tarfile.TarFile(fileobj=metered, mode="r", encoding="utf-8")
        delta = _read_delta(tar)
        new = apply_delta(base, delta)
        _check_promises(delta, expected, max_bytes)
        metered.limit_bytes = metered.tell() + _promised_bytes(delta)
        with _open_place(dest) as place:
            _stage(tar, delta, place)
            while metered.read(_CHUNK_BYTES):
                pass
            _apply(delta, place)
    return new


class _Metered(io.RawIOBase):
    """A forward reader over unpacked bytes that ends a bomb early, in memory as on disk."""

    def __init__(self, unpacked: BinaryIO | gzip.GzipFile, limit_bytes: int) -> None:
        self._unpacked = unpacked
        self._at = 0
        self.limit_bytes = limit_bytes

    def read(self, size: int = -1, /) -> bytes:
        # tarfile reads an extended header in one piece, as long as that header claims to be.
        if not 0 <= size <= _CHUNK_BYTES:
            raise _damaged("a header is too long")
        chunk = self._unpacked.read(size)
        self._at += len(chunk)
        if self._at > self.limit_bytes:
            raise _damaged("it holds more than it says")
        return chunk

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        if whence != os.SEEK_SET or offset < self._at:
            raise _damaged("its members are out of order")
        while self._at < offset and self.read(min(offset - self._at, _CHUNK_BYTES)):
            pass
        return self._at


def _read_delta(tar: tarfile.TarFile) -> Delta:
    member = _next_member(tar, HEADER_NAME)
    if member.size > _HEADER_BYTES:
        raise _damaged("its table of files is too long")
    data = json.loads(b"".join(_chunks(tar, member)))
    version = data.get("version") if isinstance(data, dict) else None
    if version != VERSION:
        raise ProtocolError(
            f"the bundle has version {version!r:.20}, this side reads version {VERSION}",
            hint="use the same version of Windlass on both sides",
        )
    return records.read(Delta, data)


def _check_promises(delta: Delta, expected: str | None, max_bytes: int) -> None:
    if expected is not None and delta.digest != expected:
        raise BundleError(
            f"bundle {delta.digest[:12]} came, but {expected[:12]} was expected",
            hint="send the bundle again",
        )
    size_bytes = sum(entry.size_bytes for entry in delta.written)
    if size_bytes > max_bytes:
        raise BundleError(
            f"the bundle unpacks to {size_bytes} bytes, over the limit of {max_bytes}",
            hint="leave large files out with .windlassignore and read them from a volume",
        )


def _promised_bytes(delta: Delta) -> int:
    files = [entry for entry in delta.written if entry.link is None]
    return sum(entry.size_bytes for entry in files) + (len(files) + 8) * _MEMBER_BYTES


def _stage(tar: tarfile.TarFile, delta: Delta, place: OpenFolder) -> None:
    for number, entry in enumerate(delta.written):
        if entry.link is None:
            _stage_file(tar, place, str(number), entry)
    if tar.next() is not None:
        raise _damaged("it holds more files than it says")


def _stage_file(tar: tarfile.TarFile, place: OpenFolder, name: str, entry: FileEntry) -> None:
    member = _next_member(tar, FILES_PREFIX + entry.path)
    if member.size != entry.size_bytes:
        raise _damaged(f"{shown(entry.path)} has another size than it says")
    whole = hashlib.sha256()
    with os.fdopen(place.open_staged(name), "wb") as staged:
        for chunk in _chunks(tar, member):
            whole.update(chunk)
            staged.write(chunk)
        os.fchmod(staged.fileno(), 0o755 if entry.executable else 0o644)
    if whole.hexdigest() != entry.sha256:
        raise _damaged(f"{shown(entry.path)} has another content than its hash says")


def _apply(delta: Delta, place: OpenFolder) -> None:
    """Removals first, for a file may become a folder; links last, for they are checked on disk."""
    for path in delta.removed:
        place.remove(path)
    for number, entry in enumerate(delta.written):
        if entry.link is None:
            place.put(str(number), entry.path)
    for number, entry in enumerate(delta.written):
        if entry.link is not None:
            place.link(str(number), entry.path, entry.link)


def _next_member(tar: tarfile.TarFile, name: str) -> tarfile.TarInfo:
    member = tar.next()
    if member is None:
        raise _damaged(f"{shown(name)} is missing")
    if member.name != name or member.type not in _REGULAR or member.issparse():
        raise _damaged(f"{shown(member.name)} is there in place of the plain file {shown(name)}")
    return member


def _chunks(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    content = tar.extractfile(member)
    if content is None:
        raise _damaged(f"{shown(member.name)} has no content")
    while chunk := content.read(_CHUNK_BYTES):
        yield chunk


@contextmanager
def _open_place(dest: Path) -> Iterator[OpenFolder]:
    stage = Path(tempfile.mkdtemp(prefix=".windlass-", dir=dest))
    try:
        place = OpenFolder(dest, stage)
        try:
            yield place
        finally:
            place.close()
    finally:
        shutil.rmtree(stage, ignore_errors=True)


@contextmanager
def _told(dest: Path) -> Iterator[None]:
    """Errors of the formats and of the disk, told as ours."""
    try:
        yield
    except (tarfile.TarError, zlib.error, gzip.BadGzipFile, EOFError) as error:
        raise _damaged(str(error)) from error
    except (ValueError, RecursionError) as error:
        raise _damaged(f"its table of files cannot be read ({error})") from error
    except OSError as error:
        raise BundleError(
            f"cannot unpack the bundle into {dest}: {error.strerror or error}",
            hint="is the folder writable, and is there space left?",
        ) from error


def _damaged(how: str) -> BundleError:
    return BundleError(f"the bundle's archive is damaged: {how}", hint="send the bundle again")
