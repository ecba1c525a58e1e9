"""The copy of a rank's share that training cannot change while it is written.

One piece of memory that the trainer and its writer process both have: a memory file, which needs no room in
/dev/shm and goes away with the processes, however they end. On GPUs it is pinned, and what an optimizer of
the state will change next is copied on a stream of its own beside the next forward and backward pass; the
optimizer's step waits for the end of the copy on the GPU, the host does not wait at all. Used by
checkpoint_writer.py and in the writer process.
"""

from __future__ import annotations

import logging
import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from windlass.train.wrapped_tensors import list_parts

logger = logging.getLogger(__name__)

_ALIGN_BYTES = 64
_GROW_BYTES = 2 << 20

Data = Mapping[MetadataIndex, torch.Tensor | bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTensor:
    """Where a tensor lies in the memory that is shared."""

    offset: int
    num_bytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]


Staged = dict[MetadataIndex, StagedTensor | bytes]


def read_staged(file: int, size: int, staged: Staged) -> dict[MetadataIndex, torch.Tensor | bytes]:
    """The tensors in a shared memory file, without copying them."""
    memory = mmap.mmap(file, size)
    return {
        index: place
        if isinstance(place, bytes)
        else torch.empty(place.shape, dtype=place.dtype)
        if not place.num_bytes
        else torch.frombuffer(memory, dtype=torch.uint8, count=place.num_bytes, offset=place.offset)
        .view(place.dtype)
        .view(place.shape)
        for index, place in staged.items()
    }


class StagingMemory:
    """Shared memory as large as the largest share so far."""

    def __init__(self) -> None:
        self.file = _make_memory_file()
        self.size = 0
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._is_pinned = False
        self._was_pinning_tried = False
        self._stream: torch.cuda.Stream | None = None
        self._copied: torch.cuda.Event | None = None
        self._guarded: dict[
            int, Any
        ] = {}  # optimizers whose step waits for the copy, and their hooks

    def grow(self, num_bytes: int, *, is_pinned: bool) -> None:
        """Have room for that many bytes."""
        if num_bytes <= self.size and (self._was_pinning_tried or not is_pinned):
            return
        self._unpin()
        self.size = max(self.size, -(-num_bytes // _GROW_BYTES) * _GROW_BYTES)
        os.ftruncate(self.file, self.size)
        self._bytes = torch.frombuffer(mmap.mmap(self.file, self.size), dtype=torch.uint8)
        if is_pinned:
            self._pin()

    def prepare(self, data: Data) -> None:
        """Have room for such a share, and touch it, since the first copy into new memory is slow."""
        is_cuda = any(value.is_cuda for value in data.values() if isinstance(value, torch.Tensor))
        self.grow(_end(_lay_out(data)), is_pinned=is_cuda)
        if not self._is_pinned:
            self._bytes.zero_()

    def stage(
        self, data: Data, optimizers: Iterable[Optimizer]
    ) -> tuple[Staged, Callable[[], None]]:
        """Copy a share. Where it lies then, and what waits until the copy is done."""
        staged = _lay_out(data)
        tensors = [value for value in data.values() if isinstance(value, torch.Tensor)]
        is_cuda = any(tensor.is_cuda for tensor in tensors)
        self.grow(_end(staged), is_pinned=is_cuda)
        late = self._guard(optimizers) if is_cuda else frozenset()
        on_side: list[tuple[torch.Tensor, torch.Tensor]] = []
        for index, place in staged.items():
            tensor = data[index]
            if not isinstance(place, StagedTensor) or not isinstance(tensor, torch.Tensor):
                continue
            target = self._bytes[place.offset : place.offset + place.num_bytes]
            target = target.view(place.dtype).view(place.shape)
            if tensor.is_cuda and _storage(tensor) in late:
                on_side.append((target, tensor))
            else:
                target.copy_(tensor, non_blocking=True)
        return staged, self._copy_beside(on_side) if is_cuda else _nothing

    def _copy_beside(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> Callable[[], None]:
        """Copy these on a stream of their own, after all that is queued now."""
        if self._stream is None:
            self._stream = torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for target, tensor in pairs:
                target.copy_(tensor, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()
        self._copied = copied

        def wait() -> None:
            copied.synchronize()
            pairs.clear()  # until here they kept their memory

        return wait

    def _guard(self, optimizers: Iterable[Optimizer]) -> frozenset[int]:
        """Let the next step of these wait for the copy; the storages of all that they change in it."""
        storages: set[int] = set()
        for optimizer in optimizers:
            if id(optimizer) not in self._guarded:
                self._guarded[id(optimizer)] = optimizer.register_step_pre_hook(self._before_step)
            values = [
                parameter for group in optimizer.param_groups for parameter in group["params"]
            ]
            values += [value for state in optimizer.state.values() for value in state.values()]
            tensors = [value for value in values if isinstance(value, torch.Tensor)]
            storages |= {_storage(part) for tensor in tensors for part in list_parts(tensor)}
        return frozenset(storages)

    def _before_step(self, *_: Any) -> None:
        copied, self._copied = self._copied, None
        if copied is not None:
            torch.cuda.current_stream().wait_event(copied)

    def _pin(self) -> None:
        self._was_pinning_tried = True
        code = torch.cuda.cudart().cudaHostRegister(self._bytes.data_ptr(), self.size, 0)
        self._is_pinned = int(code) == 0
        if not self._is_pinned:
            logger.warning(
                "no pinned memory for checkpoints (CUDA error %s): saves stall longer", code
            )

    def _unpin(self) -> None:
        if self._is_pinned:
            torch.cuda.cudart().cudaHostUnregister(self._bytes.data_ptr())
            self._is_pinned = False

    def close(self) -> None:
        """Give the memory back; the optimizers are left as they were."""
        for hook in self._guarded.values():
            hook.remove()
        self._guarded.clear()
        self._unpin()
        self._bytes = torch.empty(0, dtype=torch.uint8)
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def _nothing() -> None:
    """The copy is done already."""


def _lay_out(data: Data) -> Staged:
    staged: Staged = {}
    offset = 0
    for index, value in data.items():
        if isinstance(value, bytes):
            staged[index] = value
        else:
            staged[index] = StagedTensor(
                offset=offset,
                num_bytes=value.nbytes,
                dtype=value.dtype,
                shape=tuple(value.shape),
            )
            offset += -(-value.nbytes // _ALIGN_BYTES) * _ALIGN_BYTES
    return staged


def _end(staged: Staged) -> int:
    places = [place for place in staged.values() if isinstance(place, StagedTensor)]
    return max((place.offset + place.num_bytes for place in places), default=0)


def _storage(tensor: torch.Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return int(local.untyped_storage().data_ptr())


def _make_memory_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("windlass-checkpoint", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # not Linux: a file that has no name
        return os.dup(file.fileno())
