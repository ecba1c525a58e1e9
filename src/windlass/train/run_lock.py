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
import weakref

logger = logging.getLogger(__name__)


class RunLock:
    """The lock of one run."""

    def __init__(self, folder: str) -> None:
        """Take it, or warn that another training has it; nothing happens where there are no locks."""
        self._let_go: weakref.finalize[[int], RunLock] | None = None
        try:
            os.makedirs(folder, exist_ok=True)
            file = os.open(folder, os.O_RDONLY)
            self._let_go = weakref.finalize(self, os.close, file)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                logger.warning(
                    "another training writes to %s: they remove each other's checkpoints; end one of them, "
                    "or give this one another run",
                    folder,
                )
        else:  # a worker of a loader may outlive its trainer, and would hold it on
            os.register_at_fork(after_in_child=self._let_go)

    def close(self) -> None:
        """Let the next one have it."""
        if self._let_go is not None:
            self._let_go()
