"""Contestant that is Ray on its own local cluster, with kept actors or with a new driver for each edit.

`warm.py` runs it under a Python that has `ray`. By default it keeps one actor per rank, and functions travel
by value. `--fresh` uses Ray's own way to deploy edited files: a new driver with the working_dir in its
runtime_env. The new actors then import the edited files, while the cluster keeps running.
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
    """Actor that runs a given function as one rank."""

    def __init__(self, rank: int, size: int) -> None:
        import torch.distributed  # noqa: F401  imported before the calls

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
    """A local cluster with one kept actor per rank."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.modules = [importlib.import_module(name) for name in (STEP_NAME, TRAIN_NAME)]
        for module in [*self.modules, sys.modules[__name__]]:
            ray.cloudpickle.register_pickle_by_value(module)
        start_cluster(ranks)
        self._ranks = make_ranks(ranks)

    def call(self, name: str, *arguments: Any) -> list[Any]:
        if name == "empty":  # its own method has the least overhead
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
    """A local cluster on which each call is a new driver."""

    def __init__(self, ranks: int, project: Path) -> None:
        self.ranks = ranks
        self._project = project
        start_cluster(ranks)
        self._address = ray.get_runtime_context().gcs_address

    def call(self, name: str, *arguments: Any) -> list[Any]:
        args = ["--project", str(self._project), "--ranks", str(self.ranks)]
        command = [sys.executable, __file__, *args, "--drive", name, "--address", self._address]
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
    """Run as a driver: send the project as working_dir, which the ranks import."""
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
    parser.add_argument("--fresh", action="store_true", help="use a new driver for each call")
    parser.add_argument("--drive", default="", help="run as a driver for this function")
    parser.add_argument("--address", default="", help="cluster address for --drive")
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
