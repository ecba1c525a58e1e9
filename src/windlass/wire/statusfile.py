"""Reading a job's status file: one that is asked for often is parsed only when it has changed."""

from __future__ import annotations

import json
import os
from pathlib import Path

from windlass import records
from windlass.wire.status import JobStatus


class StatusFile:
    """The status in one file; `read` raises what opening and parsing it raise."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._status: JobStatus | None = None

    def read(self) -> JobStatus:
        with self._path.open("rb") as file:
            found = os.fstat(file.fileno())
            stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
            if self._status is None or stamp != self._stamp:
                self._status = records.read(JobStatus, json.loads(file.read()))
                self._stamp = stamp
            return self._status
