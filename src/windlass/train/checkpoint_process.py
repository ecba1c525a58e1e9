"""The process beside a trainer that writes its checkpoints: one request after another, an answer to each.

Started by checkpoint_writer.py as a program of its own: not a fork, since the trainer has threads and CUDA,
and not multiprocessing's spawn, which would run the user's script again. It ends with its trainer, whatever
ends that; a save that is under way then is lost, and no other. No CUDA and no process group in here.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from windlass.errors import EngineError
from windlass.train.checkpoint_commit import Commit, commit
from windlass.train.checkpoint_shards import Share, write_share
from windlass.train.checkpoint_staging import Staged, read_staged

_LOOK_EVERY_S = 0.5
_NICE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest:
    """A save as the writer process gets it: the data are in the shared memory."""

    share: Share
    commit: Commit | None
    size: int  # of the shared memory
    staged: Staged


def main(arguments: list[str]) -> None:
    """Serve the trainer: the numbers of the connection, of the shared memory and of its process are given."""
    connection_file, memory_file, trainer = (int(argument) for argument in arguments)
    threading.Thread(target=_end_with, args=(trainer,), daemon=True).start()
    os.nice(_NICE)
    torch.set_num_threads(1)
    connection = Connection(connection_file)
    while True:
        try:
            data = connection.recv_bytes()
        except (EOFError, ConnectionResetError):  # or the trainer was killed: it is reset then
            os._exit(0)  # all is written; taking torch apart would keep the trainer waiting
        try:
            answer = _serve(pickle.loads(data), memory_file)  # noqa: S301 - the trainer's own
        except EngineError as error:
            answer = str(error)
        except Exception as error:  # noqa: BLE001 - told to the trainer
            answer = f"{type(error).__name__}: {error}"
        connection.send_bytes(answer.encode())


def _serve(request: WriteRequest, memory_file: int) -> str:
    write_share(request.share, read_staged(memory_file, request.size, request.staged))
    if request.commit is not None:
        commit(request.commit)
    return ""


def _end_with(trainer: int) -> None:
    """End this process when its trainer has ended: forks of it may hold the connection open."""
    never = threading.Event()
    while os.getppid() == trainer:
        never.wait(_LOOK_EVERY_S)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
