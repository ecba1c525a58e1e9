"""Who writes a rank's share: a thread of the trainer, or a process beside it while training goes on.

Both take a share (and rank 0's commit) and return a future that ends when it is written. `ThreadWriter`
reads the tensors where they are, so nobody may change them before its end; `ProcessWriter` copies them
first. Called by checkpoints.py only.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from multiprocessing.connection import Connection, Pipe

import torch
from torch.optim import Optimizer

from windlass.errors import EngineError
from windlass.train.checkpoint_commit import Commit, commit
from windlass.train.checkpoint_process import WriteRequest
from windlass.train.checkpoint_shards import Share, tell_failure, write_share
from windlass.train.checkpoint_staging import Data, StagingMemory

# the trainer may save once more; a terminal sends them to all
_OF_TRAINER = (signal.SIGINT, signal.SIGTERM)
_START = (
    f"import signal; numbers = {tuple(map(int, _OF_TRAINER))}; "
    "[signal.signal(number, signal.SIG_IGN) for number in numbers]; "
    "signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers); "
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from windlass.train.checkpoint_process import main; main(sys.argv[2:])"
)
_END_S = 5.0


class ThreadWriter:
    """Writes in a thread of this process."""

    def start(self, share: Share, order: Commit | None, data: Data) -> Future[None]:
        """Begin to write. The tensors must stay as they are until the future's end."""
        if torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()

        def write() -> None:
            write_share(share, data)
            if order is not None:
                commit(order)

        return run_aside(write)


class ProcessWriter:
    """Writes in a process that is kept from save to save; one save at a time."""

    def __init__(self, lock_file: int | None = None) -> None:
        """lock_file: of the run, which stays locked until this process has ended as well."""
        self.memory = StagingMemory()
        self._lock_file = lock_file
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection[bytes, bytes] | None = None

    @property
    def process_id(self) -> int | None:
        """Of the writer process; None if it does not run."""
        is_there = self._process is not None and self._process.poll() is None
        return self._process.pid if self._process is not None and is_there else None

    def begin(self) -> None:
        """Start the process, unless it runs: it needs seconds to import torch, which nobody waits for."""
        if self.process_id is not None:
            return
        self._close_connection()
        ours, theirs = Pipe()
        with theirs, _blocked(_OF_TRAINER):
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
        self, share: Share, order: Commit | None, data: Data, optimizers: Iterable[Optimizer]
    ) -> Future[None]:
        """Copy the data, and have them written. Training may go on at once."""
        self.begin()
        staged, wait_for_copy = self.memory.stage(data, optimizers)
        request = WriteRequest(share=share, commit=order, size=self.memory.size, staged=staged)

        def write() -> None:
            wait_for_copy()
            try:
                error = self._ask(request)
            except (EOFError, OSError):
                error = f"the process that writes checkpoints {self._say_end()}"
                # its own word did not get out
                tell_failure(share.root, share.folder, share.rank, error)
            if error:
                raise EngineError(error)

        return run_aside(write)

    def _ask(self, request: WriteRequest) -> str:
        if self._connection is None:
            raise EOFError
        self._connection.send_bytes(pickle.dumps(request))
        return self._connection.recv_bytes().decode()

    def _say_end(self) -> str:
        if self._process is None:
            return "does not run"
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "does not answer"
        return (
            f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        )

    def kill(self) -> None:
        """End the process, whatever it does; the save under way is lost, the next one starts another."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End the process, which must be idle, and give the memory back."""
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
    """Hold signals back, also from a process that is started meanwhile, until it lets them in."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_aside(work: Callable[[], None]) -> Future[None]:
    """Run this in a thread that nobody waits for at the interpreter's end."""
    future: Future[None] = Future()
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    def run() -> None:
        try:
            if device is not None:  # a new thread is on GPU 0, whichever its rank has
                torch.cuda.set_device(device)
            work()
        except BaseException as error:  # noqa: BLE001 - whoever waits for the future gets it
            future.set_exception(error)
        else:
            future.set_result(None)

    threading.Thread(target=run, name="windlass-checkpoint", daemon=True).start()
    return future
