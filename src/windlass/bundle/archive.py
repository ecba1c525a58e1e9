"""Archive of a bundle. The client writes it, and nodes unpack it.

It is a gzipped tar with a header that lists the added and removed files. Nodes verify the whole archive
before they change anything, and follow no links. An error leaves the folder unchanged. This module runs in
the agent, so it uses only the standard library.
"""

from __future__ import annotations

import contextlib
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
from windlass.bundle.manifest import (
    EMPTY,
    VERSION,
    Delta,
    FileEntry,
    Manifest,
    apply_delta,
    parents_of,
    shown,
)
from windlass.bundle.scan import open_regular
from windlass.errors import BundleError, ProtocolError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CACHE_FOLDER = "__pycache__"
HEADER_NAME = "delta.json"
FILES_PREFIX = "files/"
MAX_BYTES = 2 << 30
_HEADER_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20
_MEMBER_BYTES = 16 << 10  # upper bound for a member's headers and padding, even with a long name
_REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE)


class OpenFolder:
    """An open folder and a staging folder inside it. `path` arguments are bundle paths."""

    def __init__(self, dest: Path, stage: Path) -> None:
        self.dest = Path(os.path.realpath(dest))
        self._root = os.open(self.dest, _FOLDER)
        try:
            self._stage = os.open(stage, _FOLDER)
        except OSError:
            os.close(self._root)
            raise

    def close(self) -> None:
        os.close(self._stage)
        os.close(self._root)

    def open_staged(self, name: str) -> int:
        """Return the descriptor of a new staged file, open for writing and readable only by its owner."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=self._stage)

    def put(self, name: str, path: str) -> None:
        """Rename the staged file `name` to `path`, and replace an existing file or link."""
        with self._parent(path, create=True) as (folder, leaf):
            self._clear_folder(folder, leaf)
            try:
                os.replace(name, leaf, src_dir_fd=self._stage, dst_dir_fd=folder)
            except IsADirectoryError as error:
                raise BundleError(
                    f"{shown(path)} is a folder with other files in {self.dest}",
                    hint="move the other files away, or use an empty folder",
                ) from error

    def link(self, name: str, path: str, target: str) -> None:
        """Make `path` a link to `target`, which must resolve to a path inside the folder on disk."""
        reached = os.path.realpath(self.dest / path.rpartition("/")[0] / target)
        if not Path(reached).is_relative_to(self.dest):
            raise BundleError(
                f"the link {shown(path)} would point outside {self.dest}, to {shown(reached)}",
                hint="exclude the link with .windlassignore",
            )
        os.symlink(target, name, dir_fd=self._stage)
        self.put(name, path)

    def remove(self, path: str) -> None:
        """Remove `path`, and parent folders that are empty afterwards. Do nothing if it does not exist."""
        try:
            with self._parent(path, create=False) as (folder, leaf):
                os.unlink(leaf, dir_fd=folder)
        except FileNotFoundError:
            pass
        for above in parents_of(path):
            try:
                with self._parent(above, create=False) as (folder, leaf):
                    if not self._clear_folder(folder, leaf):
                        return
            except FileNotFoundError:
                pass

    @contextlib.contextmanager
    def _parent(self, path: str, *, create: bool) -> Iterator[tuple[int, str]]:
        """Yield the open folder that holds `path`, and the last part of its name."""
        *above, leaf = path.split("/")
        folder = os.dup(self._root)
        try:
            for part in above:
                if create:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=folder)
                inner = self._enter(folder, part, path)
                os.close(folder)
                folder = inner
            yield folder, leaf
        finally:
            os.close(folder)

    def _enter(self, folder: int, part: str, path: str) -> int:
        try:
            return os.open(part, _FOLDER, dir_fd=folder)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise BundleError(
                f"cannot reach {shown(path)}: {shown(part)} in {self.dest} is not a plain folder",
                hint="move the link or file away, or use an empty folder",
            ) from error

    def _clear_folder(self, folder: int, leaf: str) -> bool:
        """Remove the folder `leaf` if it holds at most compiled Python. Return whether it was removed."""
        try:
            inner = os.open(leaf, _FOLDER, dir_fd=folder)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        try:
            if [entry.name for entry in os.scandir(inner)] == [_CACHE_FOLDER]:
                self._clear_cache(inner)
            os.rmdir(leaf, dir_fd=folder)
        except OSError:
            return False
        finally:
            os.close(inner)
        return True

    def _clear_cache(self, folder: int) -> None:
        cache = os.open(_CACHE_FOLDER, _FOLDER, dir_fd=folder)
        try:
            names = [entry.name for entry in os.scandir(cache)]
            if all(name.endswith(".pyc") for name in names):
                for name in names:
                    os.unlink(name, dir_fd=cache)
                os.rmdir(_CACHE_FOLDER, dir_fd=folder)
        finally:
            os.close(cache)


def extract(
    archive: BinaryIO,
    dest: Path,
    *,
    base: Manifest = EMPTY,
    expected: str | None = None,
    max_bytes: int = MAX_BYTES,
) -> Manifest:
    """Apply `archive` to `dest`, which contains `base`. Return the resulting manifest.

    `expected` is the digest that the sender reported over a trusted connection. `max_bytes` limits the
    bytes written. An error in the archive leaves `dest` unchanged. Only files of `base` are ever removed.
    """
    with _map_os_errors(dest):
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
    """Forward-only reader of unpacked bytes. It stops archive bombs before they fill memory or disk."""

    def __init__(self, unpacked: BinaryIO | gzip.GzipFile, limit_bytes: int) -> None:
        self._unpacked = unpacked
        self._at = 0
        self.limit_bytes = limit_bytes

    def read(self, size: int = -1, /) -> bytes:
        # tarfile reads an extended header in one piece, with the size that the header claims.
        if not 0 <= size <= _CHUNK_BYTES:
            raise _damaged("a header is too long")
        chunk = self._unpacked.read(size)
        self._at += len(chunk)
        if self._at > self.limit_bytes:
            raise _damaged("it contains more data than its header states")
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
            f"received bundle {delta.digest[:12]}, but {expected[:12]} was expected",
            hint="send the bundle again",
        )
    size_bytes = sum(entry.size_bytes for entry in delta.written)
    if size_bytes > max_bytes:
        raise BundleError(
            f"the bundle unpacks to {size_bytes} bytes, over the limit of {max_bytes}",
            hint="exclude large files with .windlassignore and read them from a volume",
        )


def _promised_bytes(delta: Delta) -> int:
    files = [entry for entry in delta.written if entry.link is None]
    return sum(entry.size_bytes for entry in files) + (len(files) + 8) * _MEMBER_BYTES


def _stage(tar: tarfile.TarFile, delta: Delta, place: OpenFolder) -> None:
    for number, entry in enumerate(delta.written):
        if entry.link is None:
            _stage_file(tar, place, str(number), entry)
    if tar.next() is not None:
        raise _damaged("it contains more files than its header states")


def _stage_file(tar: tarfile.TarFile, place: OpenFolder, name: str, entry: FileEntry) -> None:
    member = _next_member(tar, FILES_PREFIX + entry.path)
    if member.size != entry.size_bytes:
        raise _damaged(f"{shown(entry.path)} does not have its stated size")
    whole = hashlib.sha256()
    with os.fdopen(place.open_staged(name), "wb") as staged:
        for chunk in _chunks(tar, member):
            whole.update(chunk)
            staged.write(chunk)
        os.fchmod(staged.fileno(), 0o755 if entry.executable else 0o644)
    if whole.hexdigest() != entry.sha256:
        raise _damaged(f"the content of {shown(entry.path)} does not match its hash")


def _apply(delta: Delta, place: OpenFolder) -> None:
    """Apply the delta to the open folder.

    Removals are first, because a file may become a folder. Links are last, because they are checked on disk.
    """
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
        raise _damaged(f"it contains {shown(member.name)} in place of the plain file {shown(name)}")
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
def _map_os_errors(dest: Path) -> Iterator[None]:
    """Convert errors of the archive and of the disk to BundleError."""
    try:
        yield
    except (tarfile.TarError, zlib.error, gzip.BadGzipFile, EOFError) as error:
        raise _damaged(str(error)) from error
    except (ValueError, RecursionError) as error:
        raise _damaged(f"its table of files cannot be read ({error})") from error
    except OSError as error:
        raise BundleError(
            f"cannot unpack the bundle into {dest}: {error.strerror or error}",
            hint="check that the folder is writable and that the disk has free space",
        ) from error


def _damaged(how: str) -> BundleError:
    return BundleError(f"the bundle's archive is damaged: {how}", hint="send the bundle again")


def write_archive(root: Path, delta: Delta, out: BinaryIO, *, level: int = 6) -> None:
    """Write `delta`, with the contents of its files below `root`, to `out`.

    Raise BundleError if a file has changed since its entry was made. Nodes reject the partial archive.
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
    """Reader that hashes the bytes it returns."""

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
        raise _changed(entry, "its content is different")


def _changed(entry: FileEntry, how: str) -> BundleError:
    return BundleError(
        f"{shown(entry.path)} changed while it was being packed: {how}",
        hint="run it again; add a file that is written constantly to .windlassignore",
    )


def _member(name: str, size_bytes: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size_bytes
    return member
