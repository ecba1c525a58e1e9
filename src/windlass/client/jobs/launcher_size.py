"""Number of nodes and processes in the command of a launcher, so that users give it only once.

`torchrun --nnodes=4 --nproc_per_node=8 train.py` needs four nodes. It runs once on each node and starts the
processes of the node itself. Missing sizes are added, for torchrun as variables and for other launchers as
flags. This module performs no I/O.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

from windlass.errors import SpecError, count_noun
from windlass.settings import NodeRange, Settings
from windlass.spec.launchers import (
    ACCELERATE,
    DEEPSPEED,
    LauncherLine,
    find_launcher,
    insert_flags,
)
from windlass.spec.work import Command

_NNODES = re.compile(r"--(?:nnodes|num_machines|num_nodes)[= ]([0-9]+)(?::([0-9]+))?(?![^ ])")
STANDALONE = "--standalone"
# Flags of accelerate for how processes are started. It guesses this only if their number is not given.
_KINDS = (
    *(
        "multi_gpu",
        "cpu",
        "tpu",
        "use_fsdp",
        "use_deepspeed",
        "use_megatron_lm",
        "use_parallelism_config",
    ),
    "config_file",
)


def is_torchrun(command: str) -> bool:
    """Return whether a command calls a launcher, by any of its names."""
    return _find_in(command) is not None


def _find_in(command: str) -> LauncherLine | None:
    return find_launcher(("sh", "-c", command)) or find_launcher(command.split())


def read_num_nodes(command: str) -> NodeRange | None:
    """Return the minimum and maximum number of nodes in a command, or None if it has none."""
    match = _NNODES.search(command)
    if match is None or STANDALONE in command or not is_torchrun(command):
        return None
    return NodeRange(min=int(match[1]), max=int(match[2] or match[1]))


def check_num_nodes(command: str, num_nodes: int, keyword: str) -> None:
    """Reject a number that contradicts the command. torchrun would wait for nodes that never start."""
    limits = read_num_nodes(command)
    if limits is not None and not limits.min <= num_nodes <= limits.max:
        text = str(limits) if limits.min < limits.max else str(limits.max)
        flag = (_NNODES.search(command) or [""])[0].replace(" ", "=").partition("=")[0]
        raise SpecError(
            f"the command has {flag}={text}, but {count_noun(num_nodes, 'node')} would run it",
            hint=f"remove {flag}, or use {keyword}{limits.max}",
        )


def fit_launcher(work: Command, settings: Settings) -> tuple[Command, Settings]:
    """Return work and settings for a launcher: one command per node, with the missing flags."""
    line = find_launcher(work.argv)
    if line is None:
        return work, settings
    command = work.label
    limits = read_num_nodes(command)
    nodes = settings.nodes
    if limits is not None and settings.origin("nodes") == "default":
        nodes = limits.max
    most = nodes.max if isinstance(nodes, NodeRange) else nodes
    check_num_nodes(command, most, "--nodes ")
    _check_rank(line, most)
    requested = work.procs or settings.procs
    if line.num_procs is not None and requested and requested != line.num_procs:
        raise SpecError(
            f"the command starts {line.num_procs} processes per node, but {requested} were requested",
            hint=f"remove the number from the command, or use --procs {line.num_procs}",
        )
    procs = line.num_procs or requested or settings.gpus or 1
    sized = add_size_flags(replace(work, procs=procs), line, most)
    return sized, replace(settings, nodes=nodes, procs=1)


def add_size_flags(work: Command, line: LauncherLine, num_nodes: int) -> Command:
    """Return the command with its launcher's missing size flags. torchrun needs none."""
    if line.launcher == ACCELERATE:
        return insert_flags(work, line, _make_accelerate_flags(line, work.procs, num_nodes))
    if line.launcher == DEEPSPEED:
        if num_nodes > 1:
            program = shlex.join(line.program) or "train.py"
            raise SpecError(
                "deepspeed connects to other nodes over SSH, but the nodes run no SSH server",
                hint=f"run `windlass run --nodes {num_nodes} --procs {work.procs} {program}`",
            )
        return insert_flags(work, line, _make_deepspeed_flags(line, work.procs))
    return work


def _make_accelerate_flags(line: LauncherLine, procs: int, num_nodes: int) -> list[str]:
    if procs * num_nodes == 1:
        return []
    wanted = {"num_processes": str(procs * num_nodes), "main_process_port": '"$MASTER_PORT"'}
    if num_nodes > 1:
        wanted["num_machines"] = str(num_nodes)
        wanted["machine_rank"] = '"$NODE_RANK"'
        wanted["main_process_ip"] = '"$MASTER_ADDR"'
    flags = [f"--{name}={value}" for name, value in wanted.items() if line.read(name) is None]
    return flags if line.read(*_KINDS) is not None else ["--multi_gpu", *flags]


def _make_deepspeed_flags(line: LauncherLine, procs: int) -> list[str]:
    chosen = ("num_gpus", "include", "exclude", "hostfile", "H", "i", "e")
    size = [] if line.read(*chosen) is not None else [f"--num_gpus={procs}"]
    port = [] if line.read("master_port") is not None else ['--master_port="$MASTER_PORT"']
    return [*size, *port]


def _check_rank(line: LauncherLine, num_nodes: int) -> None:
    """Reject a command with a node rank, because every node would run it with the same rank."""
    node_rank = line.read_number("node_rank", "machine_rank")
    if node_rank is not None and num_nodes > 1:
        raise SpecError(
            f"the command has node rank {node_rank}, but {num_nodes} nodes would run it",
            hint="remove the node rank; Windlass sets it on each node",
        )
