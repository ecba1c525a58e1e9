"""Writers of a rank's share: a thread of the trainer, or a separate process that runs during training.

Both take a share (and on rank 0 the commit) and return a future that is done when the share is written.
`ThreadWriter` reads the tensors in place, so they must not change until then. Only checkpoints.py uses this
module.

`ProcessWriter` first copies the tensors into memory that it shares with its process. This is a memory file:
it needs no space in /dev/shm, and the system frees it when the processes end, however they end. With CUDA
tensors, this memory is pinned. Tensors that an optimizer changes in its next step are copied on a separate
CUDA stream, in parallel to the next forward and backward pass. The optimizer's step waits for this copy on
the GPU, and the host does not wait at all.

The process runs `main`. It is not a fork, because the trainer has threads and CUDA. It does not use
multiprocessing's spawn, which would run the user's script again. It exits when its trainer ends for any
reason, and only the save in progress is lost. The process uses no CUDA and no process group.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from windlass.errors import EngineError
from windlass.train.checkpoint.checkpoint_commit import Commit, commit
from windlass.train.checkpoint.rank_shares import Share, record_failure, write_share
from windlass.train.checkpoint.training_state import list_parts

logger = logging.getLogger(__name__)

_ALIGN_BYTES = 64
_GROW_BYTES = 2 << 20

Data = Mapping[MetadataIndex, torch.Tensor | bytes]
# Only the trainer handles these signals, and it may save once more. A terminal sends them to all processes.
_TRAINER_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_START = (
    f"import signal; numbers = {tuple(map(int, _TRAINER_SIGNALS))}; "
    "[signal.signal(number, signal.SIG_IGN) for number in numbers]; "
    "signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers); "
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from windlass.train.checkpoint.checkpoint_writer import main; main(sys.argv[2:])"
)
_END_S = 5.0
_POLL_S = 0.5
_NICE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTensor:
    """Position of a tensor in the shared memory."""

    offset: int
    num_bytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]


Staged = dict[MetadataIndex, StagedTensor | bytes]


def read_staged(file: int, size: int, staged: Staged) -> dict[MetadataIndex, torch.Tensor | bytes]:
    """Return the tensors in a shared memory file, without copying them."""
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
    """Shared memory, as large as the largest share so far."""

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
        """Enlarge the memory to at least that many bytes."""
        if num_bytes <= self.size and (self._was_pinning_tried or not is_pinned):
            return
        self._unpin()
        self.size = max(self.size, -(-num_bytes // _GROW_BYTES) * _GROW_BYTES)
        os.ftruncate(self.file, self.size)
        self._bytes = torch.frombuffer(mmap.mmap(self.file, self.size), dtype=torch.uint8)
        if is_pinned:
            self._pin()

    def prepare(self, data: Data) -> None:
        """Enlarge the memory for a share, and touch it, because the first copy into new memory is slow."""
        is_cuda = any(value.is_cuda for value in data.values() if isinstance(value, torch.Tensor))
        self.grow(_end(_lay_out(data)), is_pinned=is_cuda)
        if not self._is_pinned:
            self._bytes.zero_()

    def stage(
        self, data: Data, optimizers: Iterable[Optimizer]
    ) -> tuple[Staged, Callable[[], None]]:
        """Copy a share. Return its positions, and a function that waits until the copy is done."""
        staged = _lay_out(data)
        tensors = [value for value in data.values() if isinstance(value, torch.Tensor)]
        is_cuda = any(tensor.is_cuda for tensor in tensors)
        self.grow(_end(staged), is_pinned=is_cuda)
        changed_by_step = self._guard(optimizers) if is_cuda else frozenset()
        deferred: list[tuple[torch.Tensor, torch.Tensor]] = []
        for index, place in staged.items():
            tensor = data[index]
            if not isinstance(place, StagedTensor) or not isinstance(tensor, torch.Tensor):
                continue
            target = self._bytes[place.offset : place.offset + place.num_bytes]
            target = target.view(place.dtype).view(place.shape)
            if tensor.is_cuda and _storage(tensor) in changed_by_step:
                deferred.append((target, tensor))
            else:
                target.copy_(tensor, non_blocking=True)
        return staged, self._copy_on_stream(deferred) if is_cuda else _nothing

    def _copy_on_stream(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> Callable[[], None]:
        """Copy (target, source) pairs on a separate stream, after the work queued on the current one."""
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
            pairs.clear()  # the references kept the memory of the tensors alive until now

        return wait

    def _guard(self, optimizers: Iterable[Optimizer]) -> frozenset[int]:
        """Make the optimizers' next step wait for the copy. Return the storages that the step changes."""
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
                "cannot pin memory for checkpoints (CUDA error %s): saves pause training longer",
                code,
            )

    def _unpin(self) -> None:
        if self._is_pinned:
            torch.cuda.cudart().cudaHostUnregister(self._bytes.data_ptr())
            self._is_pinned = False

    def close(self) -> None:
        """Free the memory, and remove the hooks of the optimizers."""
        for hook in self._guarded.values():
            hook.remove()
        self._guarded.clear()
        self._unpin()
        self._bytes = torch.empty(0, dtype=torch.uint8)
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def _nothing() -> None:
    """Do nothing, because a copy without CUDA is already done."""


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
    with tempfile.TemporaryFile() as file:  # not Linux: use a file without a name
        return os.dup(file.fileno())


class ThreadWriter:
    """Writer that uses a thread of this process."""

    def start(self, share: Share, commit_request: Commit | None, data: Data) -> Future[None]:
        """Start writing. The tensors must not change until the future is done."""
        if torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()

        def write() -> None:
            write_share(share, data)
            if commit_request is not None:
                commit(commit_request)

        return run_in_thread(write)


class ProcessWriter:
    """Writer that uses one process for all saves, one save at a time."""

    def __init__(self, lock_file: int | None = None) -> None:
        """Create a writer that starts its process later.

        lock_file: descriptor of the run's lock. The run stays locked until the writer process ends too.
        """
        self.memory = StagingMemory()
        self._lock_file = lock_file
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection[bytes, bytes] | None = None

    @property
    def process_id(self) -> int | None:
        """Process id of the writer process, or None if it is not running."""
        is_running = self._process is not None and self._process.poll() is None
        return self._process.pid if self._process is not None and is_running else None

    def begin(self) -> None:
        """Start the process if needed. Does not wait for it, because importing torch takes seconds."""
        if self.process_id is not None:
            return
        self._close_connection()
        ours, theirs = Pipe()
        with theirs, _blocked(_TRAINER_SIGNALS):
            files = (theirs.fileno(), self.memory.file)
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-c", _START, json.dumps(sys.path)),
                    *(str(number) for number in (*files, os.getpid())),
                ],
                pass_fds=(*files, *(() if self._lock_file is None else (self._lock_file,))),
                stdin=subprocess.DEVNULL,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            )
        self._connection = ours

    def start(
        self,
        share: Share,
        commit_request: Commit | None,
        data: Data,
        optimizers: Iterable[Optimizer],
    ) -> Future[None]:
        """Copy the data and let the process write the copy. Training can continue immediately."""
        self.begin()
        staged, wait_for_copy = self.memory.stage(data, optimizers)
        request = WriteRequest(
            share=share, commit=commit_request, size=self.memory.size, staged=staged
        )

        def write() -> None:
            wait_for_copy()
            try:
                error = self._send_request(request)
            except (EOFError, OSError):
                error = f"the process that writes checkpoints {self._describe_end()}"
                # the process could not record the failure itself
                record_failure(share.root, share.folder, share.rank, error)
            if error:
                raise EngineError(error)

        return run_in_thread(write)

    def _send_request(self, request: WriteRequest) -> str:
        if self._connection is None:
            raise EOFError
        self._connection.send_bytes(pickle.dumps(request))
        return self._connection.recv_bytes().decode()

    def _describe_end(self) -> str:
        if self._process is None:
            return "is not running"
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "does not answer"
        return (
            f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        )

    def kill(self) -> None:
        """Kill the process. The save in progress is lost, and the next save starts a new process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End the process, which must be idle, and free the memory."""
        self._close_connection()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
            self.kill()
        self.memory.close()

    def _close_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@contextlib.contextmanager
def _blocked(numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Block signals in this thread, and in a process that is started meanwhile until it unblocks them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_in_thread(work: Callable[[], None]) -> Future[None]:
    """Run a function in a daemon thread, which the interpreter does not wait for when it exits."""
    future: Future[None] = Future()
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    def run() -> None:
        try:
            if device is not None:  # a new thread uses GPU 0, not the GPU of its rank
                torch.cuda.set_device(device)
            work()
        except BaseException as error:  # noqa: BLE001 - raised where the future is awaited
            future.set_exception(error)
        else:
            future.set_result(None)

    threading.Thread(target=run, name="windlass-checkpoint", daemon=True).start()
    return future


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest:
    """Request to the writer process for one save, with the data in the shared memory."""

    share: Share
    commit: Commit | None
    size: int  # size of the shared memory
    staged: Staged


def main(arguments: list[str]) -> None:
    """Serve the trainer.

    arguments: the descriptors of the connection and of the shared memory, and the trainer's process id.
    """
    connection_file, memory_file, trainer = (int(argument) for argument in arguments)
    threading.Thread(target=_exit_with, args=(trainer,), daemon=True).start()
    os.nice(_NICE)
    torch.set_num_threads(1)
    connection = Connection(connection_file)
    while True:
        try:
            data = connection.recv_bytes()
        except (EOFError, ConnectionResetError):  # reset if the trainer was killed
            os._exit(0)  # everything is written, and a normal exit of torch would delay the trainer
        try:
            answer = _serve(pickle.loads(data), memory_file)  # noqa: S301 - sent by the trainer
        except EngineError as error:
            answer = str(error)
        except Exception as error:  # noqa: BLE001 - reported to the trainer
            answer = f"{type(error).__name__}: {error}"
        connection.send_bytes(answer.encode())


def _serve(request: WriteRequest, memory_file: int) -> str:
    write_share(request.share, read_staged(memory_file, request.size, request.staged))
    if request.commit is not None:
        commit(request.commit)
    return ""


def _exit_with(trainer: int) -> None:
    """Exit when the trainer has ended. Polls the parent, because forks of it may keep the connection open."""
    never = threading.Event()
    while os.getppid() == trainer:
        never.wait(_POLL_S)
    os._exit(1)
