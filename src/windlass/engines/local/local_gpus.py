"""GPUs of this machine, and their assignment to the user's jobs.

A ledger in the user's state folder records which job holds which GPU. An entry counts while the lead of
that job holds its lock. A job that ends in any way therefore releases its GPUs.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TextIO

from windlass import names
from windlass.errors import EngineError, SpecError, count_noun
from windlass.settings.table import state_home
from windlass.trusted import make_own
from windlass.wire.job_folder import JobFolder, write_atomically

_DEVICES = "/dev/nvidia[0-9]*"
_AMD_NODES = "/sys/class/kfd/kfd/topology/nodes/*/gpu_id"
_SMI_TIMEOUT_S = 20.0

IsAlive = Callable[[JobFolder], bool]
Held = dict[str, tuple[str, int]]  # GPU -> folder of the job that holds it, and node


class GpusTaken(EngineError):
    """Too few GPUs are free. `holders` are the folders of the jobs that have the others."""

    def __init__(self, message: str, *, hint: str, holders: Sequence[JobFolder]) -> None:
        super().__init__(message, hint=hint)
        self.holders = holders


@dataclass(frozen=True, slots=True)
class GpuShare:
    """Number of GPUs of each node of a job, real or pretended."""

    per_node: int
    is_pretended: bool = False


def list_gpus(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs that processes here may use, as CUDA_VISIBLE_DEVICES names them."""
    count = count_devices()
    chosen = environ.get(names.CUDA_VISIBLE_DEVICES)
    if chosen is None:
        return tuple(map(str, range(count)))
    # CUDA ignores all entries after the first invalid one.
    words = takewhile(lambda word: word not in ("", "-1"), map(str.strip, chosen.split(",")))
    usable = (word for word in words if count and not (word.isdecimal() and int(word) >= count))
    return tuple(dict.fromkeys(usable))


def count_devices() -> int:
    """Count the GPUs that the system shows to this process."""
    if devices := glob.glob(_DEVICES):
        return len(devices)
    if listed := ask_smi("-L"):
        return sum(line.startswith("GPU ") for line in listed)
    return sum(_read(Path(path)) not in (None, "", "0") for path in glob.glob(_AMD_NODES))


def ask_smi(*words: str) -> list[str]:
    """Return the lines that nvidia-smi prints, or [] if it is missing or fails."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return []
    try:
        done = subprocess.run(
            [smi, *words], capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def check_gpus(share: GpuShare, num_nodes: int, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs of this machine. Raise `SpecError` if a job can never get as many as it requests."""
    if not share.per_node or share.is_pretended:
        return ()
    if names.CUDA_VISIBLE_DEVICES in env:
        chosen = f"{names.CUDA_VISIBLE_DEVICES}={env[names.CUDA_VISIBLE_DEVICES]}"
        raise SpecError(
            f"--gpus {share.per_node} chooses GPUs, but so does {chosen} in the job's environment",
            hint=f"omit one of them; to choose from some, export {chosen} in the shell",
        )
    gpus = list_gpus(os.environ)
    wanted = num_nodes * share.per_node
    if len(gpus) < wanted:
        requested = count_noun(wanted, "GPU") + (f" for {num_nodes} nodes" if num_nodes > 1 else "")
        raise SpecError(
            f"requested {requested}, but this machine has {describe_gpus(count_devices(), len(gpus))}",
            hint=f"omit --gpus{' or request fewer' if gpus else ''}, use a cluster with "
            "-e kubernetes, or add --pretend-gpus to start as many ranks on the CPU",
        )
    return gpus


def describe_gpus(count: int, num_usable: int) -> str:
    """Describe the number of GPUs here, and how many CUDA_VISIBLE_DEVICES leaves of them."""
    chosen = os.environ.get(names.CUDA_VISIBLE_DEVICES)
    if not count:
        return "none"
    if chosen is None:
        return str(count)
    return f"{count}, of which {names.CUDA_VISIBLE_DEVICES}={chosen} leaves {num_usable}"


def assign_gpus(
    folder: JobFolder,
    indexes: Sequence[int],
    share: GpuShare,
    gpus: Sequence[str],
    *,
    home: Path,
    is_alive: IsAlive,
) -> None:
    """Assign free GPUs to nodes of a job, and record them.

    The job's lead, or the caller for it, holds the lead's lock.
    """
    if not share.per_node:
        return
    if share.is_pretended:
        for index in indexes:
            write_atomically(folder.gpus(index), b"")
        return
    ours = str(folder.path.absolute())
    with _ledger(home) as held:
        new = [index for index in indexes if (ours, index) not in held.values()]
        alive = {path: is_alive(JobFolder(Path(path))) for path, _ in held.values()}
        for gpu in [gpu for gpu, (path, _) in held.items() if not alive[path]]:
            del held[gpu]
        wanted = len(new) * share.per_node
        free = [gpu for gpu in gpus if gpu not in held]
        if len(free) < wanted:
            raise _make_shortage(wanted, len(free), gpus, held)
        for number, index in enumerate(new):
            mine = free[number * share.per_node : (number + 1) * share.per_node]
            held.update(dict.fromkeys(mine, (ours, index)))
            write_atomically(folder.gpus(index), ",".join(mine).encode())


def _make_shortage(wanted: int, num_free: int, gpus: Sequence[str], held: Held) -> GpusTaken:
    """Return the error that names the jobs that hold GPUs."""
    by_job: dict[Path, list[str]] = {}
    for gpu in gpus:
        if gpu in held:
            by_job.setdefault(Path(held[gpu][0]), []).append(gpu)
    holders = ", ".join(f"{job.name} holds {','.join(ids)}" for job, ids in by_job.items())
    return GpusTaken(
        f"requested {count_noun(wanted, 'GPU')}, but {num_free} of {len(gpus)} here are free: {holders}",
        hint=f"run `windlass wait {next(iter(by_job)).name}`, then start this again, or request fewer",
        holders=[JobFolder(job) for job in by_job],
    )


def read_share(folder: JobFolder) -> GpuShare:
    """Return the GPU share of a job's node 0, which is that of all its nodes."""
    text = _read(folder.gpus(0))
    if text is None:
        return GpuShare(0)
    return GpuShare(len(text.split(",")), is_pretended=not text)


def read_holders(home: Path, is_alive: IsAlive) -> dict[str, str]:
    """Return the job that holds each assigned GPU, without changing the ledger."""
    text = next(filter(None, (_read(folder / _name_ledger()) for folder in _places(home))), "")
    folders = {gpu: JobFolder(Path(path)) for gpu, (path, _) in _parse(text).items()}
    return {gpu: folder.path.name for gpu, folder in folders.items() if is_alive(folder)}


@contextlib.contextmanager
def _ledger(home: Path) -> Iterator[Held]:
    """Lock and yield the ledger. Write it back unless the body raises."""
    with _open_ledger(home) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        held = _parse(file.read())
        yield held
        file.seek(0)
        file.truncate()
        json.dump(held, file)


def _open_ledger(home: Path) -> TextIO:
    """Open the user's ledger for this machine, in the engine's home if the state folder is closed."""
    fault: Exception | None = None
    for folder in _places(home):
        try:
            make_own(folder, below=folder.parent)
            return (folder / _name_ledger()).open("a+", encoding="utf-8")
        except (OSError, EngineError) as error:
            fault = error
    raise EngineError(
        f"cannot record which GPUs are in use: {fault}",
        hint="set XDG_STATE_HOME to a folder of your own",
    )


def _places(home: Path) -> tuple[Path, Path]:
    return Path(state_home(os.environ)), home


def _name_ledger() -> str:
    return f"gpus-{platform.node() or 'here'}.json"  # homes may be shared by machines


def _parse(text: str) -> Held:
    """Return the entries of a ledger, or {} if it is new or damaged."""
    try:
        return {gpu: (str(path), int(node)) for gpu, (path, node) in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def _read(path: Path) -> str | None:
    """Return the text of a small file, or None if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return None
