"""Contestant that is Monarch, with one kept process per rank. The project's functions travel by value.

`warm.py` runs it under a Python that has `torchmonarch`. The ranks are local processes, or pods with running
workers (`--workers`) behind a port-forward (`--attach`). Monarch's reload of project modules requires rsync
in its pods. Its user therefore works as in a notebook, and runs the definitions again before the call.
"""

from __future__ import annotations

import argparse
import importlib
import socket
import sys
from itertools import count
from pathlib import Path
from typing import Any

import cloudpickle
from monarch._rust_bindings.monarch_hyperactor.host_mesh import BootstrapCommand
from monarch.actor import (
    Actor,
    attach,
    attach_to_workers,
    current_rank,
    enable_transport,
    endpoint,
    this_host,
)
from warm_project import STEP_NAME, TRAIN_NAME
from warm_side import serve

LIMIT_S = 120
# import torch before the first actor, because Monarch's loader fails if an actor imports it
_BOOTSTRAP = (
    "import runpy, torch, torch.distributed; "
    "runpy.run_module('monarch._src.actor.bootstrap_main', run_name='__main__')"
)


class Rank(Actor):
    """Actor that runs a given function as one rank."""

    def __init__(self, size: int, master: str) -> None:
        import os

        rank = str(current_rank().rank)
        os.environ.update(RANK=rank, WORLD_SIZE=str(size), MASTER_ADDR=master)

    @endpoint
    def empty(self) -> None:
        return None

    @endpoint
    def run(self, function: Any, arguments: tuple[Any, ...], port: int) -> Any:
        import os

        os.environ["MASTER_PORT"] = str(port)
        return function(*arguments)


class MonarchSide:
    """The mesh of ranks, and the current versions of the project's modules."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.ranks = options.ranks
        self._is_local = not options.workers
        self._ports = count(29600)
        self.modules = [importlib.import_module(name) for name in (STEP_NAME, TRAIN_NAME)]
        for module in self.modules:
            cloudpickle.register_pickle_by_value(module)
        program = sys.executable
        if options.workers:
            enable_transport("ipc")  # for local processes, the others are reached through `attach`
            attach(options.attach)
            workers = [f"tcp://{worker}" for worker in options.workers.split(",")]
            hosts = attach_to_workers(name="hosts", ca="trust_all_connections", workers=workers)
            program, per_host = options.program, self.ranks // len(workers)
            master = options.workers.partition(":")[0]
        else:
            hosts, per_host, master = this_host(), self.ranks, "127.0.0.1"
        command = BootstrapCommand(program, None, ["-c", _BOOTSTRAP], {})
        procs = hosts.spawn_procs(per_host={"gpus": per_host}, bootstrap_command=command)
        self._procs = procs
        self._mesh = procs.spawn("ranks", Rank, self.ranks, master)
        self._mesh.empty.call().get(timeout=LIMIT_S)

    def call(self, name: str, *arguments: Any) -> list[Any]:
        if name == "empty":  # its own endpoint has the least overhead
            return list(self._mesh.empty.call().get(timeout=LIMIT_S).values())
        function = getattr(self.modules[-1], name)
        answers = self._mesh.run.call(function, arguments, self._find_port())
        return list(answers.get(timeout=LIMIT_S).values())

    def _find_port(self) -> int:
        if not self._is_local:
            return next(self._ports)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    def refresh(self) -> None:
        for module in self.modules:
            importlib.reload(module)

    def close(self) -> None:
        self._procs.stop().get(timeout=LIMIT_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--project", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--workers", default="", help="HOST:PORT,... of running workers")
    parser.add_argument(
        "--attach", default="", help="tcp://HOST:PORT that is forwarded to the first worker"
    )
    parser.add_argument(
        "--program", default="python3", help="Python in the workers' pods (default: python3)"
    )
    options = parser.parse_args()
    sys.path.insert(0, str(options.project))
    serve(lambda: MonarchSide(options), options.project)


if __name__ == "__main__":
    main()
