"""What a torchrun line says of its own size, so that nobody has to say it twice. Pure.

`torchrun --nnodes=4 --nproc_per_node=8 train.py` wants four nodes, and starts a node's processes itself.
"""

from __future__ import annotations

import re
from dataclasses import replace

from windlass.errors import SpecError
from windlass.settings import NodeRange, Settings
from windlass.spec.work import Command, Work

_NNODES = re.compile(r"--nnodes[= ]([0-9]+)(?::([0-9]+))?(?![^ ])")
_NPROC = re.compile(r"--nproc[-_]per[-_]node[= ]")
_STANDALONE = "--standalone"
_TORCHRUN = re.compile(r"(?<![^\s/])torchrun(?![^\s])|torch\.distributed\.(run|launch)(?![^\s])")


def is_torchrun(command: str) -> bool:
    """Whether a command starts torchrun, by either of its names."""
    return _TORCHRUN.search(command) is not None


def read_num_nodes(command: str) -> NodeRange | None:
    """How many nodes a command says there are, at least and at most; None where it says nothing."""
    found = _NNODES.search(command)
    if found is None or _STANDALONE in command or not is_torchrun(command):
        return None
    return NodeRange(min=int(found[1]), max=int(found[2] or found[1]))


def check_num_nodes(command: str, num_nodes: int, keyword: str) -> None:
    """Refuse a number that the command contradicts: torchrun would wait for nodes that never come."""
    said = read_num_nodes(command)
    if said is not None and not said.min <= num_nodes <= said.max:
        text = str(said) if said.min < said.max else str(said.max)
        raise SpecError(
            f"the command says --nnodes={text}, and {num_nodes} node(s) would run it",
            hint=f"leave --nnodes out, or write {keyword}{said.max}",
        )


def fit_settings(work: Work, settings: Settings) -> Settings:
    """Settings as a torchrun line wants them, where they say nothing themselves."""
    if not isinstance(work, Command):
        return settings
    command = work.label
    if _NPROC.search(command) and settings.procs is None:
        settings = replace(settings, procs=1)  # one torchrun a node
    said = read_num_nodes(command)
    if said is not None and settings.origin("nodes") == "default":
        settings = replace(settings, nodes=said.max)
    most = settings.nodes.max if isinstance(settings.nodes, NodeRange) else settings.nodes
    check_num_nodes(command, most, "--nodes ")
    return settings
