"""What ranks on other machines print, in the lead's folder, where all readers of a compute find it."""

from __future__ import annotations

import shutil

from windlass import names
from windlass.wire.job_folder import JobFolder

_KEPT_WORLDS = 200


def keep_log(folder: JobFolder, world: int, rank: int, lines: bytes) -> None:
    """Add lines to the log of a rank, up to a limit."""
    folder.make_attempt(world)
    with folder.log(world, rank).open("ab") as file:
        if file.tell() + len(lines) <= names.MAX_LOG_BYTES:
            file.write(lines)


def prune_logs(folder: JobFolder, world: int) -> None:
    """Forget what was printed long before a world."""
    shutil.rmtree(folder.attempt(world - _KEPT_WORLDS), ignore_errors=True)
