"""Callables of ours that travel in calls: a command, and a function or class by its script's own name.

The client pickles them, ranks call them. A command runs once on every node, under the names that torchrun
takes its flags from. Code of one Python minor version does not run in another: ByFile has ranks import
the script.
"""

from __future__ import annotations

import importlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from windlass import names


class ByFile:
    """Stands for something a script defines; unpickled in a rank it becomes the thing itself."""

    def __init__(self, module: str, name: str) -> None:
        self._module = module
        self._name = name

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        raise TypeError("it runs on its compute only")

    def __reduce__(self) -> Any:
        return find_by_name, (self._module, self._name)


def find_by_name(module: str, name: str) -> Any:
    """Whatever a module of the project defines under this name."""
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value


class CommandCall:
    """The words of a command."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)

    def __call__(self, *more: str) -> int:
        """Run it; an exit code other than 0 is an error."""
        words = [*self.words, *(str(word) for word in more)]
        env = {**make_node_env(os.environ), **os.environ}
        try:
            code = subprocess.run(words, env=env, check=False).returncode
        except FileNotFoundError as error:
            raise FileNotFoundError(f"there is no command {words[0]!r} on this node") from error
        if code:
            raise subprocess.CalledProcessError(code, words)
        return 0


def make_node_env(environ: Mapping[str, str]) -> dict[str, str]:
    """What torchrun and others take their flags from, on one node of a call."""
    num_nodes, node = environ[names.GROUP_WORLD_SIZE], environ[names.GROUP_RANK]
    return {
        names.NNODES: num_nodes,
        names.NODE_RANK: node,
        names.PET_NNODES: num_nodes,
        names.PET_NODE_RANK: node,
        names.PET_MASTER_ADDR: environ[names.MASTER_ADDR],
        names.PET_MASTER_PORT: environ[names.MASTER_PORT],
    }


def do_nothing() -> None:
    """Called so that everything is ready for the call that follows."""
