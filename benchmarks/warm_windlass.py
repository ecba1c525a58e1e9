"""Contestant that is Windlass: a running compute, called as by a user. `warm.py` runs it.

Nothing happens after an edit, because the next call detects the changes.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path
from typing import Any

from warm_project import TRAIN_NAME
from warm_side import serve

import windlass as wl


class WindlassSide:
    """A running compute that receives each function of the project on its first call."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.ranks = options.ranks
        where: dict[str, Any] = {
            "engine": options.engine,
            "root": str(options.project),
            "name": f"bench-{os.getpid()}",  # not the compute of another contestant
        }
        if options.engine == "kubernetes":
            image = wl.Image().from_docker(options.image)
            where |= {"namespace": options.namespace, "image": image}
            where["spread"] = "hard" if options.nodes == 2 else "soft"
        self._compute = wl.Compute(**where)
        self._spread = {"workers": options.nodes, "procs": options.ranks // options.nodes}
        self._keep = "process" if options.kept else ""
        self._module = importlib.import_module(TRAIN_NAME)
        self._remote: dict[str, Any] = {}
        self.call("first_all_reduce")  # starts the nodes and imports torch

    def call(self, name: str, *arguments: Any) -> list[Any]:
        if name not in self._remote:
            remote = wl.fn(getattr(self._module, name), keep=self._keep).to(self._compute)
            self._remote[name] = remote.distribute(framework="pytorch", **self._spread)
        return list(self._remote[name](*arguments))

    def refresh(self) -> None:
        pass

    def close(self) -> None:
        self._compute.teardown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--project", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--kept", action="store_true", help="keep processes between calls")
    parser.add_argument("--engine", default="local")
    parser.add_argument("--image", default="", help="image of the pods")
    parser.add_argument("--namespace", default="", help="namespace of the pods")
    options = parser.parse_args()
    sys.path.insert(0, str(options.project))
    serve(lambda: WindlassSide(options), options.project)


if __name__ == "__main__":
    main()
