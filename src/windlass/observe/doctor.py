"""Checks of this machine: one per requirement, each with a hint that says how to meet it.

Inspects this machine and the interpreter that ranks will run in. Starts no job and changes nothing, except
for a temporary file in the home. The command line renders the results.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from windlass import __version__, names
from windlass.client.jobs.find_jobs import list_jobs
from windlass.engines.engine_table import engine_names, make_engine
from windlass.engines.local.local_engine import is_lead_alive
from windlass.engines.local.local_gpus import (
    ask_smi,
    count_devices,
    describe_gpus,
    list_gpus,
    read_holders,
)
from windlass.errors import WindlassError
from windlass.kube.client.kubeconfig import read_target
from windlass.settings import Settings

State = Literal["ok", "warn", "missing"]

_MIN_PYTHON = (3, 10)
_MIN_FREE_BYTES = 1 << 30
_MIN_SHM_BYTES = 64 << 20
_MIN_FILES = 1024
_IMPORT_TIMEOUT_S = 120.0
_ASK = """
import platform; print(platform.python_version())
import torch; print(torch.__version__)
print(torch.version.cuda or "-")
try: print(*torch.cuda.nccl.version(), sep=".")
except Exception: print("-")
"""
_SMI_FIELDS = "index,name,memory.total,driver_version"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Result of one check. If a `needed` requirement is missing, no job can run."""

    name: str
    state: State
    found: str
    hint: str = ""
    needed: bool = False
    more: str = ""  # lines to print below, such as a manifest for an admin

    @property
    def is_fatal(self) -> bool:
        return self.needed and self.state == "missing"


def check_all(settings: Settings) -> Iterator[Check]:
    """Yield every check as its result arrives, ending with the import of torch, which may take seconds."""
    yield Check(name="windlass", state="ok", found=__version__)
    yield _check_python()
    yield _check_installed_torch()
    yield _check_start(settings)
    yield _check_home(Path(str(settings.value("home"))))
    yield _check_shared_memory()
    yield Check(name="cpus", state="ok", found=f"{_num_cpus()} usable of {os.cpu_count()}")
    yield _check_gpus(Path(str(settings.value("home"))).expanduser())
    yield _check_git()
    yield _check_files()
    yield from _check_engines(settings)
    yield _check_jobs(settings)
    yield from _check_target(settings)


def _check_python() -> Check:
    wanted = ".".join(map(str, _MIN_PYTHON))
    text = f"{platform.python_version()} at {sys.executable}"
    good = sys.version_info >= _MIN_PYTHON
    hint = "" if good else f"install Python {wanted} or newer"
    return Check(
        name="python", state="ok" if good else "missing", found=text, hint=hint, needed=True
    )


def _check_target(settings: Settings) -> Iterator[Check]:
    """Check the ranks' interpreter, and import torch in it rather than in this process."""
    python = settings.python or sys.executable
    path = shutil.which(os.path.expanduser(python))
    name, torch = "ranks' python", "torch for ranks"
    if path is None:
        hint = f"set python ({settings.origin('python')}) to the path of Python 3.10 or later"
        yield Check(name=name, state="missing", found=f"no {python}", hint=hint, needed=True)
        return
    try:
        done = subprocess.run(
            [path, "-c", _ASK],
            capture_output=True,
            text=True,
            timeout=_IMPORT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        hint = f"check the output of: {path} -c 'import torch'"
        yield Check(name=name, state="missing", found=str(error), hint=hint, needed=True)
        return
    versions = done.stdout.split()
    yield _check_version(name, path, versions[0] if versions else "")
    if len(versions) == 4 and done.returncode == 0:
        yield Check(name=torch, state="ok", found=_describe_torch(*versions[1:]))
        return
    why = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    hint = f"{path} -m pip install torch (only work that uses torch needs it)"
    yield Check(name=torch, state="missing", found=why[0], hint=hint)


def _describe_torch(version: str, cuda: str, nccl: str) -> str:
    if cuda == "-":
        return f"{version} imports, built without CUDA"
    return f"{version} imports, CUDA {cuda}" + ("" if nccl == "-" else f", NCCL {nccl}")


def _check_version(name: str, path: str, version: str) -> Check:
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers >= _MIN_PYTHON:
        return Check(name=name, state="ok", found=f"{version} at {path}", needed=True)
    wanted = ".".join(map(str, _MIN_PYTHON))
    text = f"{version or 'does not run'} at {path}"
    return Check(
        name=name, state="missing", found=text, hint=f"use Python {wanted} or newer", needed=True
    )


def _check_installed_torch() -> Check:
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        hint = "run `pip install torch`, or set python to an interpreter that has it"
        return Check(name="torch here", state="warn", found="not installed", hint=hint)
    return Check(name="torch here", state="ok", found=version)


def _check_start(settings: Settings) -> Check:
    can_fork = hasattr(os, "fork")
    if settings.start == "fork" and not can_fork:
        hint = "set start to spawn"
        return Check(name="start", state="missing", found="no fork here", hint=hint, needed=True)
    note = "fork works here" if can_fork else "no fork here"
    return Check(name="start", state="ok", found=f"{settings.start} ({note})")


def _check_home(home: Path) -> Check:
    hint = f"make it writable, or set {names.HOME} to another folder"
    folder = next(path for path in (home, *home.parents) if path.exists())
    try:
        if folder == home:
            with tempfile.TemporaryFile(dir=home):
                pass
        elif not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, f"cannot be created in {folder}")
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        text = f"{home}: {error.strerror or error}"
        return Check(name="home", state="missing", found=text, hint=hint, needed=True)
    text = f"{home}, {_size(free_bytes)} free"
    if free_bytes < _MIN_FREE_BYTES:
        return Check(
            name="home", state="warn", found=text, hint="run `windlass rm --ended` to free space"
        )
    return Check(name="home", state="ok", found=text, needed=True)


def _check_shared_memory() -> Check:
    path = Path("/dev/shm")  # noqa: S108 - only read
    if not path.is_dir():
        return Check(name="shared memory", state="ok", found="no /dev/shm on this system")
    usage = shutil.disk_usage(path)
    text = f"{_size(usage.total)} in /dev/shm, {_size(usage.free)} free"
    if usage.free < _MIN_SHM_BYTES:
        hint = "DataLoader workers need it: mount -o remount,size=2G /dev/shm, or docker --shm-size"
        return Check(name="shared memory", state="warn", found=text, hint=hint)
    return Check(name="shared memory", state="ok", found=text)


def _check_gpus(home: Path) -> Check:
    """Return the GPUs that jobs may use here, and the ones that this user's jobs hold."""
    count = count_devices()
    if not count:
        return Check(name="gpus", state="ok", found="none")
    text = describe_gpus(count, len(list_gpus(os.environ)))
    rows = [
        [word.strip() for word in line.split(",")]
        for line in ask_smi(f"--query-gpu={_SMI_FIELDS}", "--format=csv,noheader")
    ]
    rows = [row for row in rows if len(row) == len(_SMI_FIELDS.split(","))]
    text += "".join(f"; {index}: {name}, {memory}" for index, name, memory, _ in rows)
    held = "".join(f"; {job} holds {gpu}" for gpu, job in read_holders(home, is_lead_alive).items())
    driver = f"; driver {rows[0][3]}" if rows else "; nvidia-smi is missing or fails"
    return Check(name="gpus", state="ok", found=f"{text}{driver}{held}")


def _check_git() -> Check:
    path = shutil.which("git")
    if path is None:
        hint = "install git, which lists the files that belong to a project"
        return Check(name="git", state="warn", found="not found", hint=hint)
    return Check(name="git", state="ok", found=path)


def _check_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft} (can be raised to {hard})"
    if 0 <= soft < _MIN_FILES:
        return Check(
            name="open files", state="warn", found=text, hint=f"run `ulimit -n {_MIN_FILES}`"
        )
    return Check(name="open files", state="ok", found=text)


def _check_engines(settings: Settings) -> Iterator[Check]:
    for name in engine_names():
        default = ", the default here" if name == settings.engine else ""
        try:
            engine = make_engine(name, settings)
            engine.facts()
            if "pods" in engine.can:
                read_target(context=settings.context, environ=os.environ)
        except WindlassError as error:
            yield Check(
                name=f"engine {name}", state="missing", found=error.message, hint=error.hint
            )
            continue
        note = f"; `windlass doctor -e {name}` checks the cluster" if "pods" in engine.can else ""
        yield Check(name=f"engine {name}", state="ok", found=f"available{default}{note}")


def _check_jobs(settings: Settings) -> Check:
    jobs = list_jobs(settings)
    running = [job.id for job in jobs if not job.status().phase.is_final]
    counted = f"{len(running)} running, {len(jobs) - len(running)} ended"
    return Check(
        name="jobs", state="ok", found=f"{counted}{': ' if running else ''}{' '.join(running[:5])}"
    )


def _num_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _size(num_bytes: int) -> str:
    if num_bytes >= 1 << 30:
        return f"{num_bytes / (1 << 30):.1f} GiB"
    return f"{num_bytes / (1 << 20):.0f} MiB"
