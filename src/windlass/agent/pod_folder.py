"""Folder of a pod. It survives restarts of the pod's containers.

This module counts the containers, removes the working files of the previous one, and stores a mark when the
job has ended. The files of ranks stay, because the lead requests them.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from windlass import names
from windlass.wire.job_folder import JobFolder, write_atomically

_STARTS_FILE = "starts"  # one byte for each container
_ENDED_FILE = "ended"


def pod_folder() -> JobFolder:
    """Return the pod's folder without preparing it."""
    return JobFolder(Path(names.JOB_FOLDER))


def open_pod_folder(plan: bytes) -> tuple[JobFolder, int]:
    """Prepare the folder for an agent. Return it and the number of earlier containers of this pod."""
    folder = pod_folder()
    with (folder.path / _STARTS_FILE).open("ab") as starts:
        num_before = starts.tell()
        starts.write(b".")
    if num_before:
        for used in (folder.code, folder.path / "run"):
            shutil.rmtree(used, ignore_errors=True)
        for used in (folder.payload, folder.bundle):
            used.unlink(missing_ok=True)
    folder.code.mkdir()
    (folder.path / "run").mkdir(mode=0o700)
    Path(names.HOME_FOLDER).mkdir(exist_ok=True)
    folder.plan.write_bytes(plan)
    return folder, num_before


def mark_end(folder: JobFolder) -> float:
    """Record for later containers that the job has ended, and return when."""
    ended_at_s = find_end(folder) or time.time()
    write_atomically(folder.path / _ENDED_FILE, b"%f" % ended_at_s, is_durable=True)
    return ended_at_s


def find_end(folder: JobFolder) -> float | None:
    """Return when the job ended, by this machine's clock, or None if it is not known to have ended.

    If the lead was killed after its last status and before its mark, the status gives the end.
    """
    mark = folder.path / _ENDED_FILE
    if mark.exists():
        return float(mark.read_bytes())
    if not folder.status.exists():
        return None
    from windlass.wire.status import StatusFile

    status = StatusFile(folder.status).read_known()
    return status.ended_at_s if status is not None and status.phase.is_final else None
