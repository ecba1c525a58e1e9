"""Preparation of a rank before its work: the image's steps, and Windlass on the path of commands.

It runs in the rank itself, so the output of the steps is in the rank's log, and a failed step fails the rank.
Ranks of one node wait for each other. A command may start its own interpreter, which imports the installed
`windlass`, or that of the archive if none is installed.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

from windlass import names
from windlass.errors import StepFailed
from windlass.spec.work import read_step
from windlass.trusted import make_own
from windlass.wire.job_folder import JobFolder
from windlass.wire.states import RankState

# Stub package that removes itself from the path when it is imported, then loads the real package.
_PACKAGE = """import importlib.util, sys, zipimport
sys.path[:] = [path for path in sys.path if path != {folder!r}]
_specs = (finder.find_spec("windlass", None) for finder in sys.meta_path)
_spec = next((spec for spec in _specs if spec is not None), None)
_spec = _spec or zipimport.zipimporter({archive!r}).find_spec("windlass")
_module = sys.modules["windlass"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
"""


def run_command(argv: list[str], job: JobFolder, *, rank: int, attempt: int) -> NoReturn:
    """Run the steps, then replace this process with a command."""
    run_prelude(job, rank=rank, attempt=attempt)
    lend_package(job.path / "lent")
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    try:
        os.execvp(argv[0], argv)
    except FileNotFoundError:
        sys.stderr.write(f"windlass: command not found: {argv[0]}\n")
        os._exit(127)
    except OSError as error:
        sys.stderr.write(f"windlass: cannot run {argv[0]}: {error.strerror}\n")
        os._exit(126)


def run_prelude(job: JobFolder, *, rank: int, attempt: int) -> list[str]:
    """Run the steps that this node has not run yet. Return the import paths of the installed packages.

    Commands find the packages through `PYTHONPATH` and `PATH`.
    """
    steps = [read_step(one) for one in json.loads(os.environ.get(names.STEPS) or "[]")]
    if not steps:
        return []
    import asyncio

    from windlass.agent.image_steps import run_steps

    folder = job.path
    work = run_steps(
        steps, folder=folder, python=sys.executable, cwd=os.getcwd(), env=os.environ, emit=_emit
    )
    try:
        paths = asyncio.run(work)
    except (StepFailed, OSError) as error:
        _emit(f"windlass: {error}")
        _leave_error(job.result(attempt, rank), error, rank=rank, attempt=attempt)
        os._exit(1)
    _put_first("PYTHONPATH", paths)
    _put_first("PATH", [str(folder / "site" / "bin")])
    return paths


def _leave_error(path: Path, error: Exception, *, rank: int, attempt: int) -> None:
    """Write the result of a rank whose work never ran because a step failed."""
    from windlass.agent.rank.rank_outcome import make_error
    from windlass.wire.results import ResultHeader, write_result

    about = make_error(error, root="")
    header = ResultHeader(
        rank=rank, attempt=attempt, at_s=time.time(), state=RankState.RAISED, error=about
    )
    with contextlib.suppress(OSError):  # if the disk is full, the log has the error
        write_result(path, header, b"")


def _put_first(variable: str, paths: list[str]) -> None:
    known = os.environ.get(variable)
    os.environ[variable] = os.pathsep.join([*paths, *([known] if known else [])])


def _emit(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def lend_package(folder: Path) -> None:
    """Make `import windlass` work in the command that this process execs."""
    archive = os.path.abspath(sys.argv[0])
    package = folder / "windlass"
    make_own(package, below=folder.parent)
    beside = package / f"{os.getpid()}.tmp"
    beside.write_text(_PACKAGE.format(archive=archive, folder=str(folder)))
    # atomic, because ranks of one node may do this at the same time
    beside.rename(package / "__init__.py")
    paths = [os.environ.get("PYTHONPATH", ""), os.environ.get(names.TRAIN, ""), str(folder)]
    os.environ["PYTHONPATH"] = os.pathsep.join(entry for entry in paths if entry)
