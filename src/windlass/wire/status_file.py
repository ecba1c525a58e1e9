"""Reading a job's status file: one that is asked for often is parsed only when it has changed."""

from __future__ import annotations

import os
from pathlib import Path

from windlass import names, records
from windlass.errors import ProtocolError
from windlass.trusted import open_now
from windlass.wire.status import JobStatus

_MAX_TIME_S = 253_000_000_000.0  # of the year 9987: calendars end with 9999


def read_status(text: bytes) -> JobStatus:
    """A status that somebody else wrote; ProtocolError if it is malformed or out of range."""
    status = records.read(JobStatus, records.parse(text, "the status"))
    if not (0 <= status.num_ranks <= names.MAX_RANKS and 0 <= status.num_nodes <= names.MAX_RANKS):
        raise ProtocolError(
            f"the status speaks of {status.num_ranks:.3g} ranks on {status.num_nodes:.3g} nodes"
        )
    if not 0 <= status.attempt < names.MAX_ATTEMPTS:
        raise ProtocolError("the status speaks of an attempt that cannot be")
    if not all(0 <= at_s < _MAX_TIME_S for at_s in (status.created_at_s, status.ended_at_s or 0.0)):
        raise ProtocolError("the status speaks of a time that cannot be")
    return status


class StatusFile:
    """The status in one file; `read` raises what opening and parsing it raise."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._status: JobStatus | None = None

    @property
    def last(self) -> JobStatus | None:
        """What was last read."""
        return self._status

    def read_known(self) -> JobStatus | None:
        """The same, but None if there is no status yet or only half of one, as after a power cut."""
        try:
            return self.read()
        except (FileNotFoundError, ProtocolError):
            return None

    def read(self) -> JobStatus:
        with open(self._path, "rb", opener=open_now) as file:
            info = os.fstat(file.fileno())
            stamp = (info.st_ino, info.st_mtime_ns, info.st_size)
            if self._status is None or stamp != self._stamp:
                self._status = read_status(file.read(records.MAX_JSON_BYTES + 1))
                self._stamp = stamp
            return self._status
