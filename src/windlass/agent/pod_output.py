"""Output of an agent to its pod's log: the ranks' lines while they run, and the last word at the end.

The log serves users who read it through Kubernetes instead of Windlass. Writing never blocks while ranks run.
If the container runtime does not read, lines are dropped and counted, but the rank's own log file has them
all. At the end node 0 writes the last word to the log, and a termination message for Kubernetes. File sizes
are checked before reading, because results may be larger than the pod's memory. Unreadable files are left out
and listed. The job has ended by then, so no error here may make the agent fail.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import replace
from pathlib import Path

from windlass import names
from windlass.wire.file_sync import measure_files
from windlass.wire.job_folder import JobFolder
from windlass.wire.last_word import choose_files, render_last_word
from windlass.wire.log_lines import render_pod_lines
from windlass.wire.status import JobStatus, Phase, render_status

_MAX_WAITING_BYTES = 1 << 20
logger = logging.getLogger(__name__)

_MESSAGE_FILE = Path("/dev/termination-log")
_MESSAGE_BYTES = 4000


class PodLogWriter:
    """Non-blocking writer to the standard output of an agent in a pod."""

    def __init__(self, fd: int = 1) -> None:
        self._fd = fd
        self._waiting = b""
        self._num_dropped = 0
        # set while waiting until `fd` is writable
        self._loop: asyncio.AbstractEventLoop | None = None
        os.set_blocking(fd, False)

    def add(self, rank: int, attempt: int, records: bytes) -> None:
        """Write the lines of a rank, given as records of its log file."""
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
            self._loop = asyncio.get_running_loop()
            self._loop.add_writer(self._fd, self._write_rest)

    def _write_rest(self) -> None:
        self._stop_waiting()
        self._write()

    def _stop_waiting(self) -> None:
        if self._loop is not None:
            self._loop.remove_writer(self._fd)
            self._loop = None

    def flush(self) -> None:
        """Write all pending data, however long that takes."""
        self.finish(b"")

    def finish(self, data: bytes) -> None:
        """Write all pending data and then `data`, however long that takes. Call this last."""
        self._stop_waiting()
        os.set_blocking(self._fd, True)
        data, self._waiting = self._waiting + data, b""
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except OSError:
                return


def loses_results(status: JobStatus, folder: JobFolder) -> bool:
    """Return whether a result would be lost with the pod unless a client reads it from this agent."""
    sizes = _measure(status, folder)
    unkept = sizes.keys() - choose_files(sizes)
    is_wanted = status.phase is not Phase.CANCELLED
    return is_wanted and any(path.endswith(".result") for path in unkept)


def write_last_word(status: JobStatus, folder: JobFolder, log: PodLogWriter) -> None:
    """Write the status, results and logs of the last attempt to the pod's log."""
    try:
        log.finish(_make_last_word(status, folder))
        cause = status.verdict.message if status.verdict else status.conditions[-1].message
        _MESSAGE_FILE.write_bytes(f"{status.phase.value}: {cause}".encode()[:_MESSAGE_BYTES])
    except OSError as error:
        logger.warning("termination message: %s", error)
    except Exception:
        logger.exception("cannot write the last word")


def _make_last_word(status: JobStatus, folder: JobFolder) -> bytes:
    # without the command's arguments, because more users can read logs than plans
    files = {names.STATUS_FILE: render_status(replace(status, work=""))}
    try:
        sizes = _measure(status, folder)
        kept = choose_files(sizes)
        read = {path: _read(folder.path / path, sizes[path]) for path in sizes if path in kept}
        kept_files = {path: data for path, data in read.items() if data is not None}
        omitted = {path: size for path, size in sizes.items() if path not in kept_files}
        return render_last_word({**files, **kept_files}, omitted=omitted)
    except Exception:  # probably out of memory, but the status alone is small
        logger.exception("the last word contains only the status")
        return render_last_word(files)


def _measure(status: JobStatus, folder: JobFolder) -> dict[str, int]:
    """Return the sizes of the last attempt's files."""
    prefix = f"{folder.attempt(status.attempt).name}/"
    return measure_files(folder, lambda path: path.startswith(prefix))


def _read(path: Path, size: int) -> bytes | None:
    """Return the content of a file, or None if it is unreadable or smaller than when it was measured."""
    try:
        with path.open("rb") as file:
            data = file.read(size)
    except OSError as error:
        logger.warning("%s is not in the last word: %s", path.name, error)
        return None
    return data if len(data) == size else None
