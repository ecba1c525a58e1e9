"""Incremental copy of a job's folder from one machine to another, over any link.

Logs only grow. Each piece names its offset, and a reader that reconnects reports how much it has, so
nothing is lost or repeated. Other files appear whole or not at all. In every round the sender reads the
status first and sends it last, so nothing follows a final status. This module handles files, not links.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from windlass import names
from windlass.errors import ProtocolError
from windlass.trusted import make_own
from windlass.wire.job_folder import JobFolder, sync_name, write_atomically
from windlass.wire.messages.link import FilePiece

PIECE_BYTES = 1 << 20
_LOG = re.compile(r"attempt-[0-9]{1,9}/(rank|node)-[0-9]{1,9}\.log\Z")
_WHOLE = re.compile(r"attempt-[0-9]{1,9}/(rank-[0-9]{1,9}\.(result|error\.json)|world\.json)\Z")
INPUTS = frozenset({names.PAYLOAD_FILE, names.BUNDLE_FILE})
STATUS = frozenset({names.STATUS_FILE})
Choice = Callable[[str], bool]
_RESULT = ".result"
_NUMBERS = itertools.count()


def is_from_ranks(path: str) -> bool:
    """Return whether this is a file that ranks produce: a log, a result, an error or the world."""
    return bool(_LOG.match(path) or _WHOLE.match(path))


def is_input(path: str) -> bool:
    return path in INPUTS


def is_from_lead(path: str) -> bool:
    """Return whether this file may be sent to a client."""
    return path in STATUS or is_from_ranks(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Part of one file. `total_bytes` is the file's full size, or None for a log."""

    path: str
    offset: int
    body: bytes
    total_bytes: int | None = None

    @property
    def message(self) -> FilePiece:
        return FilePiece(path=self.path, offset=self.offset, total_bytes=self.total_bytes)


def read_piece(message: FilePiece, body: bytes) -> Piece:
    """Return the piece in a message and its body. Raise ProtocolError if it exceeds its file."""
    total = message.total_bytes
    if total is not None and message.offset + len(body) > total:
        raise ProtocolError(f"a piece of {message.path!r:.60} is longer than its file")
    return Piece(path=message.path, offset=message.offset, body=body, total_bytes=total)


class Sender:
    """Reader of selected files of a folder. Yields only the data that the other side lacks."""

    def __init__(self, folder: JobFolder, wants: Choice, *, has: Mapping[str, int]) -> None:
        self._folder = folder
        self._wants = wants
        self._offsets = {path: size for path, size in has.items() if _LOG.match(path)}
        self._sizes = {path: size for path, size in has.items() if path not in STATUS}
        self._stamps: dict[str, tuple[int, int, int]] = {}
        self.troubles: dict[str, str] = {}  # why files could not be read, by path

    def pieces(self) -> Iterator[Piece]:
        """Yield all data that is new since the last call.

        Each piece is read when the caller asks for it. A file that cannot be read does not delay the
        others.
        """
        status = self._read_status()
        for path in find_files(self._folder):
            if path in STATUS or not self._wants(path):
                continue
            try:
                yield from self._new_of_log(path) if _LOG.match(path) else self._whole(path)
                self.troubles.pop(path, None)
            except OSError as error:
                self._stamps.pop(path, None)
                self.troubles[path] = error.strerror or str(error)
        if status is not None:
            yield Piece(path=names.STATUS_FILE, offset=0, body=status, total_bytes=len(status))

    def _read_status(self) -> bytes | None:
        if not self._wants(names.STATUS_FILE):
            return None
        try:
            with self._folder.status.open("rb") as file:
                return file.read() if self._is_new(names.STATUS_FILE, file.fileno()) else None
        except FileNotFoundError:
            return None

    def _new_of_log(self, path: str) -> Iterator[Piece]:
        offset = self._offsets.get(path, 0)
        try:
            with (self._folder.path / path).open("rb") as file:
                # stop at the current end, or a rank that never stops writing would delay the status
                end = os.fstat(file.fileno()).st_size
                file.seek(offset)
                while body := file.read(min(PIECE_BYTES, max(0, end - offset))):
                    yield Piece(path=path, offset=offset, body=body)
                    offset += len(body)
                    self._offsets[path] = offset
        except FileNotFoundError:
            return

    def _whole(self, path: str) -> Iterator[Piece]:
        try:
            with (self._folder.path / path).open("rb") as file:
                total = os.fstat(file.fileno()).st_size
                if not self._is_new(path, file.fileno()) or self._sizes.pop(path, None) == total:
                    return
                offset = 0
                while True:
                    body = file.read(PIECE_BYTES)
                    yield Piece(path=path, offset=offset, body=body, total_bytes=total)
                    offset += len(body)
                    if offset >= total or not body:
                        return
        except FileNotFoundError:
            return

    def _is_new(self, path: str, fd: int) -> bool:
        info = os.fstat(fd)
        stamp = (info.st_ino, info.st_mtime_ns, info.st_size)
        is_new = self._stamps.get(path) != stamp
        self._stamps[path] = stamp
        return is_new


class Receiver:
    """Writer that stores received pieces in a folder. Refuses files that `takes` does not accept.

    Each peer needs its own receiver. Several peers can then send the same file at the same time without
    conflict.
    """

    def __init__(self, folder: JobFolder, takes: Choice) -> None:
        self._folder = folder
        self._takes = takes
        self._mark = f"{os.getpid()}-{next(_NUMBERS)}"
        self._parts: set[Path] = set()

    def take(self, piece: Piece, *, is_last: bool = False) -> bool:
        """Write one piece. Return whether its file is now complete (a log never is).

        Pass `is_last` for a final status, so that it survives a power failure. Results always do.
        """
        if not self._takes(piece.path):
            raise ProtocolError(f"file {piece.path!r:.60} is not accepted here")
        if bool(_LOG.match(piece.path)) != (piece.total_bytes is None):
            raise ProtocolError(f"{piece.path}: only logs are sent without a total size")
        path = self._folder.path / piece.path
        if path.parent != self._folder.path:
            make_own(path.parent)
        if piece.total_bytes is None:
            _append(path, piece)
            return False
        if piece.offset == 0 and len(piece.body) == piece.total_bytes:
            is_durable = is_last or piece.path.endswith(_RESULT)
            write_atomically(path, piece.body, is_durable=is_durable)
            return True
        return self._add_part(path, piece)

    def _add_part(self, path: Path, piece: Piece) -> bool:
        part = path.with_name(f".{path.name}.{self._mark}.part")
        self._parts.add(part)
        with part.open("wb" if piece.offset == 0 else "ab") as file:
            if file.tell() != piece.offset:
                raise ProtocolError(
                    f"a piece of {piece.path} starts at {piece.offset}, but the file ends at {file.tell()}"
                )
            file.write(piece.body)
            if piece.offset + len(piece.body) < (piece.total_bytes or 0):
                return False
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync_name(path)
        self._parts.discard(part)
        return True

    def drop_parts(self) -> None:
        """Remove incomplete files. A peer that reconnects sends them again from the start."""
        for part in self._parts:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
        self._parts.clear()


def _append(path: Path, piece: Piece) -> None:
    if piece.offset + len(piece.body) > names.MAX_LOG_BYTES:
        return  # no Windlass agent lets a log grow this large
    with path.open("ab") as file:
        # two clients with the same home folder may copy the same job
        fcntl.flock(file, fcntl.LOCK_EX)
        known = file.seek(0, os.SEEK_END)
        if piece.offset > known:
            raise ProtocolError(
                f"a piece of {piece.path} starts at {piece.offset}, but the file ends at {known}"
            )
        file.write(piece.body[known - piece.offset :])


def find_files(folder: JobFolder) -> Iterator[str]:
    """Yield every file of a folder that may be sent, oldest attempt first."""
    for path in sorted(INPUTS | STATUS):
        if (folder.path / path).exists():
            yield path
    for attempt in folder.attempts():
        prefix = folder.attempt(attempt).name
        try:
            file_names = sorted(entry.name for entry in os.scandir(folder.attempt(attempt)))
        except FileNotFoundError:
            continue
        yield from (f"{prefix}/{name}" for name in file_names if is_from_ranks(f"{prefix}/{name}"))


def measure_files(folder: JobFolder, wants: Choice) -> dict[str, int]:
    """Return the size of each wanted file here. The other side needs it before it sends."""
    sizes = {}
    for path in find_files(folder):
        if wants(path):
            with contextlib.suppress(OSError):  # an unreadable file counts as absent
                sizes[path] = (folder.path / path).stat().st_size
    return sizes
