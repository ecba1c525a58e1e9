"""Values in segments: a pickle, and beside it the large buffers of arrays and tensors, never copied into it.

A payload is the segments one after another; their lengths travel separately. One that is large lies in a file
that its reader maps: so a gigabyte is copied once on its way into a rank on the same machine. Used by ranks
and by clients.
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
from windlass.wire.tensor_pickling import IN_BAND_BYTES

Segment = bytes | bytearray | memoryview

SPILL_BYTES = 1 << 20  # more than this goes by file
_NEEDED_BYTES = 64 << 20  # of shared memory, or it is not used
_SHARED_MEMORY = "/dev/shm"  # noqa: S108
_PLAIN = frozenset({type(None), bool, int, float, str})
_numbers = itertools.count()


def pack(value: Any, *, name: str) -> list[Segment]:
    """The segments of a value; what cannot travel is named by its path, starting at `name`."""
    if type(value) in _PLAIN:
        return [pickle.dumps(value, protocol=5)]
    buffers: list[Segment] = []

    def keep_aside(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # with gaps in it
            return True
        if raw.nbytes < IN_BAND_BYTES:
            return True
        buffers.append(raw)
        return False

    return [pickling.dump(value, name=name, keep_aside=keep_aside), *buffers]


def unpack(segments: Sequence[Segment]) -> Any:
    """The value again. Arrays and tensors use the segments' own memory."""
    return pickle.loads(segments[0], buffers=segments[1:])  # noqa: S301 - from this job's own peers


def cut(body: Segment | mmap.mmap, sizes: Sequence[int]) -> list[memoryview]:
    """The segments that lie in one body, one after another."""
    view, segments = memoryview(body), []
    for size in sizes:
        segments.append(view[:size])
        view = view[size:]
    return segments


def write_file(folder: str, segments: Iterable[Segment]) -> str:
    """Put a payload into a new file, in memory where there is room; its path."""
    path = new_path(folder)
    with open(path, "xb") as file:
        os.fchmod(file.fileno(), 0o600)
        for segment in segments:
            file.write(segment)
    return path


def forget(path: str) -> None:
    """A payload's file is no longer needed; it may be gone already."""
    if path:
        with contextlib.suppress(OSError):
            os.unlink(path)


def new_path(folder: str) -> str:
    return os.path.join(folder, f"payload-{os.getpid()}-{next(_numbers)}")


def map_file(path: str) -> mmap.mmap | bytes:
    """A payload's bytes; what the reader writes into them stays its own."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def make_spill(name: str, fallback: Path) -> Path:
    """Make the folder for a node's payloads: in shared memory, or in `fallback` where that is not possible.

    Shared memory may be too small. Or another user may have made a folder of that name before us, for us to
    load pickles from.
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
    """Remove what nodes of a job on this machine left in shared memory."""
    parent = _shared_parent()
    if not find_private_fault(parent):
        for path in parent.glob(f"{job_id}-*"):
            if path.name.removeprefix(
                f"{job_id}-"
            ).isdigit():  # not of a job whose id only begins so
                shutil.rmtree(path, ignore_errors=True)
