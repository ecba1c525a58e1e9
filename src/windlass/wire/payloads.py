"""Values in segments: a pickle, and beside it the large buffers of arrays and tensors, never copied into it.

A payload is the segments one after another, with their lengths told apart. One that is large lies in a file
that its reader maps: so a gigabyte is copied once on its way into a rank on the same machine. Used by ranks
and by clients; torch is touched only where the user's own code has imported it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import itertools
import mmap
import os
import pickle
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from windlass.trusted import find_private_fault, make_private
from windlass.wire.pickling import cannot_travel, reduce_error

Segment = bytes | bytearray | memoryview

SPILL_BYTES = 1 << 20  # more than this goes by file
_IN_BAND_BYTES = 32 << 10  # less than this is not worth a segment of its own
_NEEDED_BYTES = 64 << 20  # of shared memory, or it is not used
_SHARED_MEMORY = "/dev/shm"  # noqa: S108
_PLAIN = frozenset({type(None), bool, int, float, str})
_numbers = itertools.count()


def pack(value: Any, *, name: str) -> list[Segment]:
    """The segments of a value; what cannot travel is named by its path, starting at `name`."""
    if type(value) in _PLAIN:
        return [pickle.dumps(value, protocol=5)]
    import cloudpickle

    buffers: list[Segment] = []

    def keep_aside(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # with gaps in it
            return True
        if raw.nbytes < _IN_BAND_BYTES:
            return True
        buffers.append(raw)
        return False

    out = io.BytesIO()
    pickler = _pickler_class(cloudpickle, sys.modules.get("torch"))
    try:
        pickler(out, protocol=5, buffer_callback=keep_aside).dump(value)
    except Exception as error:
        raise cannot_travel(value, name, error) from error
    return [out.getbuffer(), *buffers]


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
    """The folder for a node's payloads: in shared memory where that is large enough, else beside it."""
    path = fallback / "payloads"
    with contextlib.suppress(OSError):
        if _has_room(_NEEDED_BYTES):
            _make_shared_parent()
            path = _shared_parent() / name
    make_private(path)
    return path


def check_spill() -> None:
    """Refuse now what nodes of this machine would refuse when they have started."""
    with contextlib.suppress(OSError):
        if _has_room(0):
            _make_shared_parent()


def _has_room(needed_bytes: int) -> bool:
    free = os.statvfs(_SHARED_MEMORY)
    return free.f_bavail * free.f_frsize >= needed_bytes


def _make_shared_parent() -> None:
    """Anybody may have made a folder of that name before us, and put pickles there for us to load."""
    parent = _shared_parent()
    hint = f"payloads of computes go there; have its owner or root remove it: rm -r {parent}"
    make_private(parent, hint=hint)


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


@functools.lru_cache(maxsize=4)
def _pickler_class(cloudpickle: Any, torch: Any) -> Any:
    """cloudpickle's pickler; tensors leave their memory aside, on the CPU; exceptions travel whole."""
    tensor = getattr(torch, "Tensor", None)

    class TensorPickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            reduced = None
            if tensor is not None and type(obj) is tensor and obj.layout is torch.strided:
                reduced = _reduce_tensor(torch, obj)
            elif isinstance(obj, BaseException):
                reduced = reduce_error(obj)
            return super().reducer_override(obj) if reduced is None else reduced

    return TensorPickler


def _reduce_tensor(torch: Any, tensor: Any) -> Any:
    if tensor.device.type == "meta" or tensor.is_quantized:
        return None
    if tensor.device.type != "cpu":
        tensor = tensor.detach().cpu().requires_grad_(tensor.requires_grad)
    is_plain = tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
    if not is_plain or tensor.numel() * tensor.element_size() < _IN_BAND_BYTES:
        return tensor.__reduce_ex__(2)
    flat = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    about = (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.requires_grad)
    # ranks have forgotten our modules: by its name it travels only where it can be found by it
    build = importlib.import_module(__name__).build_tensor
    return build, (pickle.PickleBuffer(flat), *about)


def build_tensor(data: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool) -> Any:
    """A tensor over memory that came with it."""
    torch: Any = importlib.import_module("torch")  # the user's own, where there are tensors
    if memoryview(data).readonly:
        data = bytearray(data)
    flat = torch.frombuffer(data, dtype=torch.uint8)
    return flat.view(getattr(torch, dtype)).reshape(shape).requires_grad_(requires_grad)
