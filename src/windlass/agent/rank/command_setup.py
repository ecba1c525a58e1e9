"""What a job's node does before the command or the ranks' own Python: the steps of its image.

Runs in the rank itself, so that steps are told in its log and what fails in them fails the rank. Ranks of one
node wait for each other.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path

from windlass import names
from windlass.errors import StepFailed
from windlass.spec.image_step import read_step
from windlass.wire.job_folder import JobFolder
from windlass.wire.states import RankState


def run_prelude(job: JobFolder, *, rank: int, attempt: int) -> list[str]:
    """Run the steps that this node has not run yet; where what they installed is.

    A command finds it by its variables.
    """
    steps = [read_step(one) for one in json.loads(os.environ.get(names.STEPS) or "[]")]
    if not steps:
        return []
    import asyncio

    from windlass.agent.node.image_steps import run_steps

    folder = job.path
    work = run_steps(
        steps, folder=folder, python=sys.executable, cwd=os.getcwd(), env=os.environ, say=_say
    )
    try:
        paths = asyncio.run(work)
    except (StepFailed, OSError) as error:
        _say(f"windlass: {error}")
        _leave_error(job.result(attempt, rank), error, rank=rank, attempt=attempt)
        os._exit(1)
    _put_first("PYTHONPATH", paths)
    _put_first("PATH", [str(folder / "site" / "bin")])
    return paths


def _leave_error(path: Path, error: Exception, *, rank: int, attempt: int) -> None:
    """Report that a step failed: the command never ran."""
    from windlass.agent.rank.error_info import make_error
    from windlass.wire.results import ResultHeader, write_result

    about = make_error(error, root="")
    header = ResultHeader(
        rank=rank, attempt=attempt, at_s=time.time(), state=RankState.RAISED, error=about
    )
    with contextlib.suppress(OSError):  # a full disk: the log has it
        write_result(path, header, b"")


def _put_first(variable: str, paths: list[str]) -> None:
    known = os.environ.get(variable)
    os.environ[variable] = os.pathsep.join([*paths, *([known] if known else [])])


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
