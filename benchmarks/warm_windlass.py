"""Windlass as a contestant: a compute that is up, called as its user would; run by `warm.py`.

An edit needs nothing: the call that follows finds what has changed.
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
    """Nodes that stay up; each function of the project is sent there when it is first called."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.ranks = options.ranks
        where: dict[str, Any] = {
            "engine": options.engine,
            "root": str(options.project),
            "name": f"bench-{os.getpid()}",  # another contestant's nodes are not for us
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
        self.call("first_all_reduce")  # pays for the nodes and torch once

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
    parser.add_argument("--kept", action="store_true", help="processes stay between calls")
    parser.add_argument("--engine", default="local")
    parser.add_argument("--image", default="", help="of the pods")
    parser.add_argument("--namespace", default="", help="of the pods")
    options = parser.parse_args()
    sys.path.insert(0, str(options.project))
    serve(lambda: WindlassSide(options), options.project)


if __name__ == "__main__":
    main()
