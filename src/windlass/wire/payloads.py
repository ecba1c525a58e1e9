"""Payloads: values as segments, which are a pickle and the large buffers of arrays and tensors.

Large buffers are not copied into the pickle. A payload is the concatenation of its segments, and their
lengths are sent separately. A large payload is in a file that its reader maps. A gigabyte is therefore copied
only once on its way into a rank on the same machine. Ranks and clients use this module.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import pickle
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from windlass.errors import EngineError
from windlass.trusted import find_private_fault, make_private
from windlass.wire import pickling
from windlass.wire.pickling import IN_BAND_BYTES

Segment = bytes | bytearray | memoryview

SPILL_BYTES = 1 << 20  # larger payloads go through a file
_NEEDED_BYTES = 64 << 20  # free shared memory required to use it for payloads
_SHARED_MEMORY = "/dev/shm"  # noqa: S108
_PLAIN = frozenset({type(None), bool, int, float, str})
_numbers = itertools.count()


def pack(value: Any, *, name: str) -> list[Segment]:
    """Return the segments of a value. An error names the part that cannot be pickled, starting at `name`."""
    if type(value) in _PLAIN:
        return [pickle.dumps(value, protocol=5)]
    buffers: list[Segment] = []

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # the buffer is not contiguous
            return True
        if raw.nbytes < IN_BAND_BYTES:
            return True
        buffers.append(raw)
        return False

    return [pickling.dump(value, name=name, keep_in_band=keep_in_band), *buffers]


def unpack(segments: Sequence[Segment]) -> Any:
    """Return the value in the segments. Its arrays and tensors use the segments' memory."""
    return pickle.loads(segments[0], buffers=segments[1:])  # noqa: S301 - from this job's own peers


def cut(body: Segment | mmap.mmap, sizes: Sequence[int]) -> list[memoryview]:
    """Split a body into its segments, without copying."""
    view, segments = memoryview(body), []
    for size in sizes:
        segments.append(view[:size])
        view = view[size:]
    return segments


def write_file(folder: str, segments: Iterable[Segment]) -> str:
    """Write a payload into a new file in `folder`, and return its path."""
    path = new_path(folder)
    with open(path, "xb") as file:
        os.fchmod(file.fileno(), 0o600)
        for segment in segments:
            file.write(segment)
    return path


def forget(path: str) -> None:
    """Delete a payload's file if it still exists."""
    if path:
        with contextlib.suppress(OSError):
            os.unlink(path)


def new_path(folder: str) -> str:
    return os.path.join(folder, f"payload-{os.getpid()}-{next(_numbers)}")


def map_file(path: str) -> mmap.mmap | bytes:
    """Map a payload's file. Writes to the mapping do not change the file."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def make_spill_folder(name: str, fallback: Path) -> Path:
    """Make the folder for a node's payloads, in shared memory if possible, else in `fallback`.

    Falls back if shared memory is too small. Also falls back if another user owns a folder of that name,
    because this process would otherwise load that user's pickles.
    """
    path = fallback / "payloads"
    with contextlib.suppress(OSError, EngineError):
        if _has_room(_NEEDED_BYTES):
            make_private(_shared_parent())
            path = _shared_parent() / name
    make_private(path)
    return path


def _has_room(needed_bytes: int) -> bool:
    free = os.statvfs(_SHARED_MEMORY)
    return free.f_bavail * free.f_frsize >= needed_bytes


def _shared_parent() -> Path:
    return Path(_SHARED_MEMORY, f"windlass-{os.geteuid()}")


def remove_spills(job_id: str) -> None:
    """Remove payloads left in shared memory by a job's nodes on this machine."""
    parent = _shared_parent()
    if not find_private_fault(parent):
        for path in parent.glob(f"{job_id}-*"):
            # skips jobs whose ID only starts with this one
            if path.name.removeprefix(f"{job_id}-").isdigit():
                shutil.rmtree(path, ignore_errors=True)
