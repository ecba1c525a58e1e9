"""Callables that Windlass sends in calls: a command, and a function or class named by its script.

The client pickles them and ranks call them. A command runs once on every node, with the environment
variables that torchrun reads its flags from. Pickled code runs only on the same Python minor version.
ByFile avoids that: ranks import the script instead.
"""

from __future__ import annotations

import importlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from windlass import names


class ByFile:
    """Placeholder for something a script defines. Unpickling it in a rank yields the thing itself."""

    def __init__(self, module: str, name: str) -> None:
        self._module = module
        self._name = name

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        raise TypeError("it can be called only on its compute")

    def __reduce__(self) -> Any:
        return find_by_name, (self._module, self._name)


def find_by_name(module: str, name: str) -> Any:
    """Return what a module of the project defines under this name."""
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value


class CommandCall:
    """A command, as a list of words."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)

    def __call__(self, *more: str) -> int:
        """Run the command. Raise CalledProcessError if its exit code is not 0."""
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
    """Return the variables that torchrun and others read their flags from, for one node of a call."""
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
    """Do nothing. A call of this prepares nodes and ranks for the next call."""
