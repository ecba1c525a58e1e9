"""Callables that clients send in calls: commands, and functions and classes that ranks import by name.

The client pickles them and ranks call them. A command runs once on every node, with the environment
variables from which torchrun reads its flags. Pickled code runs only on the same Python minor version.
With `ByFile`, ranks import the script instead, so the versions may differ.
"""

from __future__ import annotations

import importlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from windlass import names


class ByFile:
    """Reference to a function or class of a script. Unpickling it in a rank returns the object itself."""

    def __init__(self, module: str, name: str) -> None:
        self._module = module
        self._name = name

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        raise TypeError(f"{self._name} can be called only on its compute")

    def __reduce__(self) -> Any:
        return find_by_name, (self._module, self._name)


def find_by_name(module: str, name: str) -> Any:
    """Return the object with this qualified name in a module of the project."""
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value


class CommandCall:
    """Callable that runs a command, given as a list of words."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)

    def __call__(self, *more: str) -> int:
        """Run the command. Raise CalledProcessError if its exit code is not 0."""
        words = [*self.words, *(str(word) for word in more)]
        env = {**make_node_env(os.environ), **os.environ}
        try:
            code = subprocess.run(words, env=env, check=False).returncode
        except FileNotFoundError as error:
            raise FileNotFoundError(f"command {words[0]!r} not found on this node") from error
        if code:
            raise subprocess.CalledProcessError(code, words)
        return 0


def make_node_env(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables from which torchrun and similar launchers read their flags, for one node."""
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
    """Do nothing. Calling this on a compute prepares its nodes and ranks for the next call."""
