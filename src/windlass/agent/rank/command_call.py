"""A command as something to call: run once on every node, its output the rank's own.

It finds what the Command of a job finds in its environment: the names that torchrun takes its flags from.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from windlass import names


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
