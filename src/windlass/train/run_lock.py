"""One training at a time writes to a run: rank 0 holds a lock on the run's folder while it trains.

It is the system's lock on the folder itself, which goes with the process, so nothing is ever left behind. A
second training is warned and goes on: network file systems may keep the lock of a machine that is gone for a
while, and a replaced pod must not fail for that. Called by `trainer_setup`.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os

logger = logging.getLogger(__name__)


class RunLock:
    """The lock of one run."""

    def __init__(self, folder: str) -> None:
        """Take it, or warn that another training has it; nothing happens where there are no locks."""
        self._file: int | None = None
        try:
            self._file = os.open(folder, os.O_RDONLY)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                logger.warning(
                    "another training writes to %s: they remove each other's checkpoints; end one of them, "
                    "or give this one another run",
                    folder,
                )

    def close(self) -> None:
        """Let the next one have it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
