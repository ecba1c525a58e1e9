"""Command lines of launchers, which start a node's processes: torchrun, accelerate launch, deepspeed.

Each node runs the command once, whatever the number of ranks. This module reads the number of processes from
the command line, and adds missing flags. It performs no I/O.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from windlass.errors import SpecError
from windlass.spec.work import Command, Module, Script

TORCHRUN, ACCELERATE, DEEPSPEED = "torchrun", "accelerate launch", "deepspeed"
_MODULES = {
    "torch.distributed.run": TORCHRUN,
    "torch.distributed.launch": TORCHRUN,
    "accelerate.commands.launch": ACCELERATE,
    "deepspeed.launcher.runner": DEEPSPEED,
}
_SHELLS = re.compile(r"(ba|da|z|k)?sh\Z")
_ENDS_COMMAND = re.compile(r"[;&|()]+|\n")
_PYTHON = re.compile(r"python[0-9.]*\Z")
# torchrun's flags that are followed by a value
_VALUES = frozenset(
    {
        *("nnodes", "nproc_per_node", "node_rank", "master_addr", "master_port", "local_addr"),
        *("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "max_restarts", "role"),
        *("monitor_interval", "start_method", "event_log_handler", "log_dir", "logs_specs"),
        *("r", "redirects", "t", "tee", "local_ranks_filter", "numa_binding"),
        *("signals_to_handle", "shutdown_timeout"),
    }
)
_OURS = frozenset(
    {"nnodes", "nproc_per_node", "node_rank", "master_addr", "master_port", "standalone"}
)


_OWN_PLACE = "omit it: each node knows its own rank"
_RENDEZVOUS = "omit it: Windlass configures the rendezvous"
# Launcher flags that have another name in Windlass: the launcher, and the hint, with {} for the value.
# Excludes flags that scripts often have too (--log_dir, --role, --include, --config_file).
_TRANSLATIONS = {
    "nproc_per_node": (TORCHRUN, "write --procs {}"),
    "nnodes": (TORCHRUN, "write --nodes {}"),
    "node_rank": (TORCHRUN, _OWN_PLACE),
    "rdzv_backend": (TORCHRUN, _RENDEZVOUS),
    "rdzv_endpoint": (TORCHRUN, _RENDEZVOUS),
    "rdzv_id": (TORCHRUN, _RENDEZVOUS),
    "rdzv_conf": (TORCHRUN, _RENDEZVOUS),
    "standalone": (TORCHRUN, "omit it: a job of one node is the default"),
    "max_restarts": (TORCHRUN, "write --restarts {}"),
    "master_addr": (TORCHRUN, _RENDEZVOUS),
    "master_port": (TORCHRUN, _RENDEZVOUS),
    "num_processes": (ACCELERATE, "write --procs {}, which counts the ranks of one node"),
    "num_machines": (ACCELERATE, "write --nodes {}"),
    "machine_rank": (ACCELERATE, _OWN_PLACE),
    "main_process_ip": (ACCELERATE, _RENDEZVOUS),
    "main_process_port": (ACCELERATE, _RENDEZVOUS),
    "multi_gpu": (ACCELERATE, "write --gpus N, the number of GPUs of one node"),
    "use_fsdp": (ACCELERATE, "write --env ACCELERATE_USE_FSDP=true"),
    "use_deepspeed": (ACCELERATE, "write --env ACCELERATE_USE_DEEPSPEED=true"),
    "num_gpus": (DEEPSPEED, "write --gpus {}"),
    "num_nodes": (DEEPSPEED, "write --nodes {}"),
    "hostfile": (DEEPSPEED, "write --nodes N with the engine that has the nodes: -e kubernetes"),
}
_NO_VALUE = ("standalone", "multi_gpu", "use_fsdp", "use_deepspeed")


def translate_flag(word: str, following: str = "") -> SpecError | None:
    """Return the error for a launcher's flag, with a hint about Windlass's flag, or None for other words."""
    name, equals, value = word.partition("=")
    key = name.removeprefix("--").replace("-", "_")
    if not word.startswith("--") or key not in _TRANSLATIONS:
        return None
    if not equals and key not in _NO_VALUE and not following.startswith("-"):
        value = following
    launcher, instead = _TRANSLATIONS[key]
    if key == "nproc_per_node" and value in ("gpu", "auto"):
        instead, value = "write --gpus N, the number of GPUs of one node", value
    shown = f"{name} {value}" if value else name
    return SpecError(f"{shown} is a flag of {launcher}", hint=instead.format(value or "N"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherLine:
    """Command line of a launcher, split after the launcher's name."""

    launcher: str
    head: tuple[str, ...]
    args: tuple[str, ...]  # the launcher's flags, then the program
    is_shell: bool = False  # the command line was part of a shell command

    def read(self, *names: str) -> str | None:
        """Return the value of a launcher's flag that has these names, or None."""
        for index, word in enumerate(self.args):
            if word.endswith(".py") or word in ("-m", "--module"):
                return None
            name, equals, value = word.lstrip("-").partition("=")
            if word.startswith("-") and name.replace("-", "_") in names:
                following = self.args[index + 1] if index + 1 < len(self.args) else ""
                return value if equals else following
        return None

    def read_number(self, *names: str) -> int | None:
        value = self.read(*names)
        return int(value) if value is not None and value.isdecimal() else None

    @property
    def num_procs(self) -> int | None:
        """Number of processes per node in the command line, or None."""
        if self.launcher == ACCELERATE:
            total, nodes = self.read_number("num_processes"), self.read_number("num_machines")
            return None if total is None else max(1, total // (nodes or 1))
        return self.read_number("nproc_per_node", "num_gpus")

    @property
    def program(self) -> tuple[str, ...]:
        """Script that the launcher starts, with its arguments."""
        scripts = [i for i, word in enumerate(self.args) if word.endswith(".py")]
        return self.args[scripts[0] :] if scripts else ()


def find_launcher(argv: Sequence[str]) -> LauncherLine | None:
    """Return the launcher's command line inside a command, which may be a shell command."""
    if argv and _SHELLS.search(argv[0].rpartition("/")[2]):
        flags = [i for i, word in enumerate(argv[:3]) if re.fullmatch(r"-[a-z]*c", word)]
        text = argv[flags[0] + 1] if flags and len(argv) > flags[0] + 1 else ""
        for part in _ENDS_COMMAND.split(text):
            try:
                line = _find(shlex.split(part))
            except ValueError:  # an unclosed quote, so it is not a launcher's command line
                continue
            if line is not None:
                return LauncherLine(launcher=line[0], head=line[1], args=line[2], is_shell=True)
        return None
    line = _find(argv)
    return None if line is None else LauncherLine(launcher=line[0], head=line[1], args=line[2])


def _find(argv: Sequence[str]) -> tuple[str, tuple[str, ...], tuple[str, ...]] | None:
    is_python = False
    for index, word in enumerate(argv):
        name = word.rpartition("/")[2]
        following = argv[index + 1] if index + 1 < len(argv) else ""
        size = 0
        if name in (TORCHRUN, DEEPSPEED):
            launcher, size = name, 1
        elif name == "accelerate" and following == "launch":
            launcher, size = ACCELERATE, 2
        elif is_python and word == "-m" and following in _MODULES:
            launcher, size = _MODULES[following], 2
        if size:
            return launcher, tuple(argv[: index + size]), tuple(argv[index + size :])
        if name.endswith(".py") or (is_python and not word.startswith("-")):
            return None  # the user's program, and all following words are its arguments
        is_python = is_python or _PYTHON.match(name) is not None
    return None


def insert_flags(command: Command, line: LauncherLine, flags: Sequence[str]) -> Command:
    """Return the command with flags after its launcher.

    A shell runs the command, so that flags can use variables that are set only on the node.
    """
    if not flags:
        return command
    added = " ".join(flags)
    if line.is_shell:
        head = r"\s+".join(map(re.escape, line.head[-2:] if len(line.head) > 1 else line.head))
        at = next(i for i, word in enumerate(command.argv) if re.search(head, word))
        text = re.sub(head, lambda match: f"{match[0]} {added}", command.argv[at], count=1)
        argv = (*command.argv[:at], text, *command.argv[at + 1 :])
    else:
        words = f"exec {shlex.join(line.head)} {added} {shlex.join(line.args)}"
        argv = ("sh", "-c", words)
    return Command(argv=argv, procs=command.procs)


def unwrap_torchrun(command: Command) -> tuple[Script | Module | Command, tuple[str, ...]]:
    """Return torchrun's program, and its flags except those for nodes, processes and rendezvous."""
    line = find_launcher(command.argv)
    if line is None:
        return command, ()
    if line.launcher != TORCHRUN or line.is_shell or len(line.head) not in (1, 3):
        raise SpecError(
            f"an export without Windlass runs torchrun, but {command.label!r:.80} is not a torchrun command",
            hint="export the script with `windlass export train.py`, or use -e kubernetes without --plain",
        )
    kept: list[str] = []
    queue = list(reversed(line.args))
    kinds: set[str] = set()
    while queue and queue[-1].startswith("-"):
        word = queue.pop()
        name, equals, _ = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        value = [queue.pop()] if not equals and name in _VALUES and queue else []
        if name in ("m", "module", "no_python"):
            kinds.add("module" if name != "no_python" else name)
        elif name not in _OURS and not name.startswith("rdzv_"):
            kept += [word, *value]
    words = tuple(reversed(queue))
    if not words:
        raise SpecError(
            f"{command.label!r:.80} names no script to run", hint="run torchrun train.py"
        )
    if "module" in kinds:
        return Module(name=words[0], args=words[1:]), tuple(kept)
    if "no_python" in kinds:
        return Command(argv=words), tuple(kept)
    return Script(path=words[0], args=words[1:]), tuple(kept)
