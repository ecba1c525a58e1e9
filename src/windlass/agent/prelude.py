"""What a command's node does before the command: the steps of its image.

Runs in the rank itself, so that steps are told in its log and what fails in them fails the rank. Ranks of one
node wait for each other.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from windlass import names
from windlass.errors import StepFailed


def run_prelude(folder: Path) -> None:
    """Run the steps that this node has not run yet, and let the command find what they installed."""
    steps = json.loads(os.environ.get(names.STEPS) or "[]")
    if not steps:
        return
    import asyncio

    from windlass.agent.steps import run_steps

    work = run_steps(
        steps, folder=folder, python=sys.executable, cwd=os.getcwd(), env=os.environ, say=_say
    )
    try:
        paths = asyncio.run(work)
    except (StepFailed, OSError) as error:
        _say(f"windlass: {error}")
        os._exit(1)
    _put_first("PYTHONPATH", paths)
    _put_first("PATH", [str(folder / "site" / "bin")])


def _put_first(variable: str, paths: list[str]) -> None:
    known = os.environ.get(variable)
    os.environ[variable] = os.pathsep.join([*paths, *([known] if known else [])])


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
