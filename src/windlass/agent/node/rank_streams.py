"""Copy of a rank's output from its pipes to its log file, in bounded memory.

Lines are split at 16 KiB, and only some updates of a progress bar are kept. Lines are dropped if the disk is
full or the log is too large. Dropped lines are reported, and they never block a rank.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import time
from collections.abc import Callable
from pathlib import Path

from windlass import names
from windlass.wire.job_folder import JobFolder
from windlass.wire.log_lines import FULL, PART, REPLACED, STREAMS, render_prefix

logger = logging.getLogger(__name__)

_CHECK_BYTES = 16 << 20  # written between two checks of the free space
_READ_BYTES = 64 << 10  # larger read buffers are allocated and freed for every read
_PARTIAL_AFTER_S = 0.2  # an unfinished line is written after this time
_REPLACED_EVERY_S = 0.2  # at most one update of a progress bar is kept per interval


def share_room(folder: JobFolder, num_nodes: int, num_ranks: int) -> int:
    """Return how many bytes each of this node's `num_ranks` ranks may log in the next attempt.

    They share half of the node's remaining quota, so that every later attempt also has room.
    """
    used = 0
    for attempt in folder.attempts():
        for path in folder.log(attempt, 0).parent.glob("*.log"):
            with contextlib.suppress(OSError):
                used += path.stat().st_size
    room = max(0, names.MAX_LOG_BYTES - used) // num_nodes
    return room // (2 * max(1, num_ranks))


class LineCutter:
    """Splitter of one stream's bytes into log records. Performs no I/O. Callers pass the time."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._pending = b""
        self._last_replaced_s = 0.0
        # parts of the current line are written, so the next line must not join them
        self._is_open = False

    @property
    def has_pending(self) -> bool:
        return bool(self._pending.rstrip(b"\r"))

    def feed(self, data: bytes, now_s: float) -> bytes:
        """Return the records that `data` completes, ready to be written."""
        prefix = self._prefixes(now_s)
        *lines, rest = (self._pending + data).split(b"\n")
        records: list[bytes] = []
        for line in lines:
            self._cut(line, FULL, prefix, records, now_s)
        drawn = rest.rstrip(b"\r")
        head, separator, tail = drawn.rpartition(b"\r")
        if separator:
            self._cut(head, REPLACED, prefix, records, now_s)
        # a \r at the very end may be the first half of \r\n
        rest = tail + b"\r" if len(drawn) < len(rest) else tail
        self._pending = self._split(rest, prefix, records)
        return b"".join(records)

    def flush(self, now_s: float, *, tag: str = PART) -> bytes:
        """Return the pending bytes as a part of an unfinished line, or with `FULL` as its end."""
        line = self._pending.rstrip(b"\r")
        self._pending = self._pending[len(line) :] if tag == PART else b""
        records: list[bytes] = []
        if line or (tag == FULL and self._is_open):
            self._cut(line, tag, self._prefixes(now_s), records, now_s)
        return b"".join(records)

    def _prefixes(self, now_s: float) -> dict[str, bytes]:
        return {tag: render_prefix(now_s, self._stream, tag) for tag in (FULL, PART, REPLACED)}

    def _cut(
        self, line: bytes, tag: str, prefix: dict[str, bytes], records: list[bytes], now_s: float
    ) -> None:
        *drawn, line = line.rstrip(b"\r").split(b"\r")
        for drawing in drawn:
            self._add_replaced(drawing, prefix, records, now_s)
        if tag == REPLACED:
            self._add_replaced(line, prefix, records, now_s)
            return
        records.append(prefix[tag] + self._split(line, prefix, records) + b"\n")
        self._is_open = tag == PART

    def _split(self, line: bytes, prefix: dict[str, bytes], records: list[bytes]) -> bytes:
        """Write all but the last part of a long line, and return that part."""
        limit = names.MAX_LOG_RECORD_BYTES
        while len(line) > limit:
            records.append(prefix[PART] + line[:limit] + b"\n")
            line = line[limit:]
            self._is_open = True
        return line

    def _add_replaced(
        self, drawing: bytes, prefix: dict[str, bytes], records: list[bytes], now_s: float
    ) -> None:
        is_due = bool(drawing) and now_s - self._last_replaced_s >= _REPLACED_EVERY_S
        if is_due or self._is_open:
            self._last_replaced_s = now_s
            self._is_open = False
            records.append(prefix[REPLACED] + drawing[: names.MAX_LOG_RECORD_BYTES] + b"\n")


class RankStreams:
    """Both pipes of one rank, copied to one log file."""

    def __init__(
        self,
        path: Path,
        on_trouble: Callable[[str], None],
        echo: Callable[[bytes], None] | None = None,
        *,
        max_bytes: int = names.MAX_LOG_BYTES,
    ) -> None:
        self._path = path
        self._room_bytes = max_bytes
        self._unchecked_bytes = 0  # how many bytes may be written before the next check of the disk
        self._echo = echo
        self._on_trouble = on_trouble
        self._loop = asyncio.get_running_loop()
        self._file: int | None = None
        self._lost_bytes = 0
        self._readers: dict[int, LineCutter] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._poll = select.poll()  # checks both pipes in one call

    def open(self) -> tuple[int, int]:
        """Make the pipes and return their write ends, which the caller must close once the rank has them."""
        try:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            self._trouble(error.strerror or str(error))
        ends = []
        for stream in STREAMS:
            read_end, write_end = os.pipe()
            os.set_blocking(read_end, False)
            self._readers[read_end] = LineCutter(stream)
            self._poll.register(read_end, select.POLLIN)
            self._loop.add_reader(read_end, self._read, read_end)
            ends.append(write_end)
        return ends[0], ends[1]

    def _read(self, fd: int) -> None:
        data = self._take(fd)
        if data:
            cutter = self._readers[fd]
            self._write(cutter.feed(data, time.time()))
            if cutter.has_pending and fd not in self._timers:
                self._timers[fd] = self._loop.call_later(_PARTIAL_AFTER_S, self._flush, fd)
        elif data is not None:
            self._close(fd)

    @staticmethod
    def _take(fd: int) -> bytes | None:
        try:
            return os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def _flush(self, fd: int) -> None:
        self._timers.pop(fd, None)
        if fd in self._readers:
            self._write(self._readers[fd].flush(time.time()))

    def _write(self, data: bytes) -> None:
        if self._echo is not None and data:
            self._echo(data)
        if self._file is None or not data:
            return
        if len(data) > self._room_bytes:
            self._lose(data, "it has reached the maximum size of a log")
            self._room_bytes = 0  # drop all later lines too, even shorter ones that would fit
            return
        self._room_bytes -= len(data)
        if not self._has_space(len(data)):
            self._lose(data, "its disk is nearly full")
            return
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            self._lose(data, error.strerror or str(error))

    def _has_space(self, num_bytes: int) -> bool:
        """Return whether the disk has enough free space. Checks once per 16 MiB written."""
        self._unchecked_bytes -= num_bytes
        if self._unchecked_bytes >= 0:
            return True
        try:
            disk = os.statvfs(self._path)
        except OSError:
            return True
        free, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
        is_spare = free >= min(names.MIN_FREE_BYTES, size // 20)
        self._unchecked_bytes = _CHECK_BYTES if is_spare else 0
        return is_spare

    def _lose(self, data: bytes, why: str) -> None:
        if not self._lost_bytes:
            self._trouble(why)
        self._lost_bytes += len(data)

    def _trouble(self, why: str) -> None:
        logger.warning("log %s: %s", self._path, why)
        self._on_trouble(f"{self._path.name} is incomplete: {why}")

    def _close(self, fd: int) -> None:
        cutter = self._readers.pop(fd)
        timer = self._timers.pop(fd, None)
        if timer is not None:
            timer.cancel()
        self._write(cutter.flush(time.time(), tag=FULL))
        self._loop.remove_reader(fd)
        self._poll.unregister(fd)
        os.close(fd)

    def settle(self) -> None:
        """Read and write all pending output, including the start of an unfinished line."""
        if not self._timers and not self._poll.poll(0):
            return
        for fd in list(self._readers):
            while fd in self._readers and self._take_now(fd):
                pass
            timer = self._timers.pop(fd, None)
            if timer is not None:
                timer.cancel()
            self._flush(fd)

    def close(self) -> None:
        """Read the pending output, then close the pipes, even if a grandchild still has them open."""
        for fd in list(self._readers):
            while fd in self._readers and self._take_now(fd):
                pass
            if fd in self._readers:
                self._close(fd)
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _take_now(self, fd: int) -> bool:
        data = self._take(fd)
        if data:
            self._write(self._readers[fd].feed(data, time.time()))
        return bool(data)
