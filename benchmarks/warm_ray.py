"""Ray as a contestant, on a cluster of its own in this machine: kept actors, or a fresh driver for each edit.

Run by `warm.py` under a Python that has `ray`. Kept: one actor a rank, functions travel by value.
`--fresh` is what Ray offers for edited project files: a new driver whose runtime_env has the working_dir, so
actors are new and import the files as they are now; the cluster stays up.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import ray
from warm_project import STEP_NAME, TRAIN_NAME
from warm_side import serve

LIMIT_S = 120


class Rank:
    """One rank: runs what it is given, in the environment it is given."""

    def __init__(self, rank: int, size: int) -> None:
        import torch.distributed  # noqa: F401  ahead of the calls

        os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1")

    def empty(self) -> None:
        return None

    def run(self, function: Any, refs: list[Any], port: int) -> Any:
        os.environ["MASTER_PORT"] = str(port)
        return function(*ray.get(refs))

    def run_named(self, name: str, port: int) -> Any:
        os.environ["MASTER_PORT"] = str(port)
        return getattr(importlib.import_module(TRAIN_NAME), name)()


def make_ranks(num: int) -> list[Any]:
    make = ray.remote(num_cpus=0)(Rank)
    ranks = [make.remote(rank, num) for rank in range(num)]
    ray.get([rank.empty.remote() for rank in ranks], timeout=LIMIT_S)
    return ranks


def find_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RaySide:
    """A cluster of one machine, and one kept actor a rank."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.modules = [importlib.import_module(name) for name in (STEP_NAME, TRAIN_NAME)]
        for module in [*self.modules, sys.modules[__name__]]:
            ray.cloudpickle.register_pickle_by_value(module)
        start_cluster(ranks)
        self._ranks = make_ranks(ranks)

    def call(self, name: str, *arguments: Any) -> list[Any]:
        if name == "empty":  # a method of its own is the least it can do
            calls = [rank.empty.remote() for rank in self._ranks]
        else:
            function, port = getattr(self.modules[-1], name), find_port()
            refs = [ray.put(value) for value in arguments]  # once for all ranks
            calls = [rank.run.remote(function, refs, port) for rank in self._ranks]
        return list(ray.get(calls, timeout=LIMIT_S))

    def refresh(self) -> None:
        for module in self.modules:
            importlib.reload(module)

    def close(self) -> None:
        ray.shutdown()


class FreshRaySide:
    """A cluster of one machine; each call is a driver of its own."""

    def __init__(self, ranks: int, project: Path) -> None:
        self.ranks = ranks
        self._project = project
        start_cluster(ranks)
        self._address = ray.get_runtime_context().gcs_address

    def call(self, name: str, *arguments: Any) -> list[Any]:
        words = ["--project", str(self._project), "--ranks", str(self.ranks)]
        command = [sys.executable, __file__, *words, "--drive", name, "--address", self._address]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=True
        )
        return list(json.loads(done.stdout.splitlines()[-1]))

    def refresh(self) -> None:
        pass

    def close(self) -> None:
        ray.shutdown()


def start_cluster(ranks: int) -> None:
    ray.init(
        include_dashboard=False, num_cpus=max(ranks, 2), log_to_driver=False, logging_level="error"
    )


def drive(options: argparse.Namespace) -> None:
    """A driver: the project travels as working_dir, the ranks import it."""
    where = {"working_dir": str(options.project)}
    ray.init(address=options.address, runtime_env=where, log_to_driver=False, logging_level="error")
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    port = find_port()
    calls = [rank.run_named.remote(options.drive, port) for rank in make_ranks(options.ranks)]
    print(json.dumps(ray.get(calls, timeout=LIMIT_S)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--project", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--fresh", action="store_true", help="a new driver for each call")
    parser.add_argument("--drive", default="", help="be such a driver, for this function")
    parser.add_argument("--address", default="", help="of the cluster, for a driver")
    options = parser.parse_args()
    if options.drive:
        drive(options)
        return
    sys.path.insert(0, str(options.project))
    if options.fresh:
        serve(lambda: FreshRaySide(options.ranks, options.project), options.project)
    else:
        serve(lambda: RaySide(options.ranks), options.project)


if __name__ == "__main__":
    main()
