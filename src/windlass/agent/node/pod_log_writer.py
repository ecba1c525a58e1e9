"""The pod's own log: ranks' lines go there too, for whoever asks Kubernetes instead of us.

Never blocks: when the container runtime does not read, lines are dropped and counted. The rank's own log
file has them all.
"""

from __future__ import annotations

import asyncio
import os

from windlass.wire.pod_log import render_pod_lines

_MAX_WAITING_BYTES = 1 << 20


class PodLogWriter:
    """Standard output of an agent in a pod."""

    def __init__(self, fd: int = 1) -> None:
        self._fd = fd
        self._waiting = b""
        self._num_dropped = 0
        self._loop = asyncio.get_running_loop()
        os.set_blocking(fd, False)

    def add(self, rank: int, attempt: int, records: bytes) -> None:
        """Lines of a rank, as its log file has them."""
        if len(self._waiting) > _MAX_WAITING_BYTES // 2:  # rendering costs more than counting
            self._num_dropped += records.count(b"\n")
            return
        lines = render_pod_lines(records, rank=rank, attempt=attempt)
        if len(self._waiting) + len(lines) > _MAX_WAITING_BYTES:
            self._num_dropped += lines.count(b"\n")
            return
        if self._num_dropped:
            lines = b"[%d lines are missing here]\n" % self._num_dropped + lines
            self._num_dropped = 0
        was_idle = not self._waiting
        self._waiting += lines
        if was_idle:
            self._write()

    def _write(self) -> None:
        try:
            self._waiting = self._waiting[os.write(self._fd, self._waiting) :]
        except BlockingIOError:
            pass
        except OSError:
            self._waiting = b""
        if self._waiting:
            self._loop.add_writer(self._fd, self._write_rest)

    def _write_rest(self) -> None:
        self._loop.remove_writer(self._fd)
        self._write()

    def finish(self, data: bytes) -> None:
        """What is left, and `data` after it, however long that takes: the last thing an agent does."""
        self._loop.remove_writer(self._fd)
        os.set_blocking(self._fd, True)
        data, self._waiting = self._waiting + data, b""
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except OSError:
                return
