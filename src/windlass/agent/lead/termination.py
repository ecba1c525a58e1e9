"""What node 0's pod leaves when its job has ended: the last word in its log, a sentence for Kubernetes.

Sizes are looked at before anything is read: results may be larger than the pod's memory. What cannot be
read is left out and named. The job is over by now, so nothing here may be what an agent fails of.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from windlass import names
from windlass.wire.file_sync import measure_files
from windlass.wire.initial_status import render_status
from windlass.wire.job_folder import JobFolder
from windlass.wire.last_word import choose_files, render_last_word
from windlass.wire.status import JobStatus, Phase

if TYPE_CHECKING:
    from windlass.agent.node.pod_log_writer import PodLogWriter

logger = logging.getLogger(__name__)

_MESSAGE_FILE = Path("/dev/termination-log")
_MESSAGE_BYTES = 4000


def loses_results(status: JobStatus, folder: JobFolder) -> bool:
    """Whether a result is gone with the pod unless a client reads it from here."""
    sizes = _measure(status, folder)
    unkept = sizes.keys() - choose_files(sizes)
    is_wanted = status.phase is not Phase.CANCELLED
    return is_wanted and any(path.endswith(".result") for path in unkept)


def leave_last_word(status: JobStatus, folder: JobFolder, log: PodLogWriter) -> None:
    """Status, results and logs of the last attempt, where they outlive the pod."""
    log.finish(_make_last_word(status, folder))
    said = status.verdict.message if status.verdict else status.conditions[-1].message
    try:
        _MESSAGE_FILE.write_bytes(f"{status.phase.value}: {said}".encode()[:_MESSAGE_BYTES])
    except OSError as error:
        logger.warning("termination message: %s", error)


def _make_last_word(status: JobStatus, folder: JobFolder) -> bytes:
    # without the command's arguments: more people may read logs than plans, and readers have the plan
    files = {names.STATUS_FILE: render_status(replace(status, work=""))}
    try:
        sizes = _measure(status, folder)
        kept = choose_files(sizes)
        read = {path: _read(folder.path / path, sizes[path]) for path in sizes if path in kept}
        kept_files = {path: data for path, data in read.items() if data is not None}
        omitted = {path: size for path, size in sizes.items() if path not in kept_files}
        return render_last_word({**files, **kept_files}, omitted=omitted)
    except Exception:  # memory that ran out, most of all: the status alone is small
        logger.exception("the last word is the status alone")
        return render_last_word(files)


def _measure(status: JobStatus, folder: JobFolder) -> dict[str, int]:
    """The files of the last attempt."""
    prefix = f"{folder.attempt(status.attempt).name}/"
    return measure_files(folder, lambda path: path.startswith(prefix))


def _read(path: Path, size: int) -> bytes | None:
    """A file as large as it was when it was measured; None when that cannot be."""
    try:
        with path.open("rb") as file:
            data = file.read(size)
    except OSError as error:
        logger.warning("%s is not in the last word: %s", path.name, error)
        return None
    return data if len(data) == size else None
