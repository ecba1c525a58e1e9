"""Shared parts of all cases: options, installed contestants, and fair turns.

All contestants of a case run at the same time and take turns. A different one goes first in each round. The
first round is a warm-up and does not count.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from warm_case import Line, render_seconds
from warm_peer import Peer, Start, open_peer
from warm_project import make_project

HERE = Path(__file__).parent
FORKS, KEPT = "windlass", "windlass, kept"
INSTALL = {
    "monarch": "not installed: run `pip install torchmonarch torch`, then pass `--monarch ITS_PYTHON`",
    "ray": "not installed: run `pip install 'ray[default]' torch`, then pass `--ray ITS_PYTHON`",
}


class Contestant(Protocol):
    """A contestant with a name, measured one edit at a time."""

    @property
    def name(self) -> str: ...

    def edit(self, do: str, number: int) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The options of one run."""

    folder: Path  # parent of all written files
    rounds: int
    calls: int  # empty calls per round
    big_bytes: int
    pause_s: float  # before each edit
    pythons: dict[str, str]  # peer -> Python, empty if not installed
    torchrun: Path
    image: str = ""
    monarch_image: str = ""
    namespace: str = ""
    context: str = ""

    def start(self, name: str, program: str, args: Sequence[str], **env: str) -> Start:
        """Return the start of a contestant, with its own copy of the project to edit."""
        project = self.make_project()
        peer = program.removeprefix("warm_").removesuffix(".py")
        python = self.pythons.get(peer, sys.executable)
        command = [python, str(HERE / program), "--project", str(project), *args]
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        env = {"WINDLASS_HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1", **env}
        return Start(name=name, command=command, project=project, env=env)

    def make_project(self) -> Path:
        number = len(list(self.folder.glob("project-*")))
        project = self.folder / f"project-{number}"
        project.mkdir()
        make_project(project)
        return project


def ours(setup: Setup, *, ranks: int, nodes: int = 1, kept: bool = False, **more: str) -> Start:
    """Return the start of Windlass. In `more`, upper-case names are environment variables, others flags."""
    args = ["--ranks", str(ranks), "--nodes", str(nodes), *(["--kept"] if kept else [])]
    env = {key: value for key, value in more.items() if key.isupper()}
    for key, value in more.items():
        if not key.isupper():
            args += [f"--{key}", value]
    return setup.start(KEPT if kept else FORKS, "warm_windlass.py", args, **env)


def open_all(stack: ExitStack, starts: Sequence[Start]) -> list[Peer]:
    """Start the contestants one after another."""
    found = []
    for start in starts:
        log(f"starting {start.name}")
        found.append(stack.enter_context(open_peer(start)))
    return found


def take_turns(
    contestants: Sequence[Any], rounds: int, case: str, measure: Callable[[Any], list[float]]
) -> dict[str, list[float]]:
    """Run a warm-up of each contestant, then all in turn."""
    samples: dict[str, list[float]] = {each.name: [] for each in contestants}
    for number in range(rounds + 1):
        turn = number % len(contestants)
        for each in (*contestants[turn:], *contestants[:turn]):
            seconds = measure(each)
            middle = render_seconds(sorted(seconds)[len(seconds) // 2])
            log(f"{case}: {each.name} {middle}{'' if number else ' (warm-up)'}")
            if number:
                samples[each.name] += seconds
    return samples


_NUMBERS = count()


def time_edits(
    setup: Setup, contestants: Sequence[Contestant], case: str, do: str
) -> dict[str, list[float]]:
    """Measure edits with a different line each time. A pause before each leaves time to fork spare ranks."""

    def measure(each: Contestant) -> list[float]:
        time.sleep(setup.pause_s)
        return [each.edit(do, 100 + next(_NUMBERS) % 900)]

    return take_turns(contestants, setup.rounds, case, measure)


def missing(setup: Setup, case: str, names: Sequence[str]) -> list[Line]:
    """Return a line for each peer that is not installed."""
    return [
        Line(case=case, who=name, note=INSTALL[name]) for name in names if not setup.pythons[name]
    ]


def find_python(given: str, module: str) -> str:
    """Return the Python that has this module, or an empty string."""
    python = given or sys.executable
    if shutil.which(python) is None:
        raise SystemExit(f"warm: {python} does not exist\nhint: pass a Python that has {module}")
    script = f"import importlib.util, sys; sys.exit(not importlib.util.find_spec({module!r}))"
    has = subprocess.run([python, "-c", script], check=False, timeout=60).returncode == 0
    if given and not has:
        raise SystemExit(f"warm: {python} has no {module}\nhint: install it there")
    return python if has else ""


def read_version(python: str, package: str) -> str:
    """Return the version of a package that this Python has."""
    if not python:
        return "not installed"
    script = f"from importlib.metadata import version; print(version({package!r}))"
    command = [python, "-c", script]
    return subprocess.check_output(command, text=True, timeout=60).strip()


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
