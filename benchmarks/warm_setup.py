"""What every case shares: the options, the contestants that are here, and turns that are fair.

Contestants of one case are all up at the same time and take turns; who goes first changes each round; the
first round warms up and does not count.
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
from warm_peer import Peer, Start, opened
from warm_project import make_project

HERE = Path(__file__).parent
FORKS, KEPT = "windlass", "windlass, kept"
INSTALL = {
    "monarch": "not here: `pip install torchmonarch torch` into an environment, then `--monarch ITS_PYTHON`",
    "ray": "not here: `pip install 'ray[default]' torch` into an environment, then `--ray ITS_PYTHON`",
}


class Contestant(Protocol):
    """Who can be measured: by name, one edit at a time."""

    @property
    def name(self) -> str: ...

    def edit(self, do: str, number: int) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The options of one run."""

    folder: Path  # all that is written is below it
    rounds: int
    calls: int  # empty calls a round
    big_bytes: int
    pause_s: float  # before each edit
    pythons: dict[str, str]  # of peers, by name; empty: not here
    torchrun: Path
    image: str = ""
    monarch_image: str = ""
    namespace: str = ""
    context: str = ""

    def start(self, name: str, program: str, words: Sequence[str], **env: str) -> Start:
        """A contestant of this project, with a copy of its own to edit."""
        project = self.make_project()
        who = program.removeprefix("warm_").removesuffix(".py")
        python = self.pythons.get(who, sys.executable)
        command = [python, str(HERE / program), "--project", str(project), *words]
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        told = {"WINDLASS_HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1", **env}
        return Start(name=name, command=command, project=project, env=told)

    def make_project(self) -> Path:
        number = len(list(self.folder.glob("project-*")))
        project = self.folder / f"project-{number}"
        project.mkdir()
        make_project(project)
        return project


def ours(setup: Setup, *, ranks: int, nodes: int = 1, kept: bool = False, **more: str) -> Start:
    """Windlass; more: words of its program and variables of its environment."""
    words = ["--ranks", str(ranks), "--nodes", str(nodes), *(["--kept"] if kept else [])]
    env = {key: value for key, value in more.items() if key.isupper()}
    for key, value in more.items():
        if not key.isupper():
            words += [f"--{key}", value]
    return setup.start(KEPT if kept else FORKS, "warm_windlass.py", words, **env)


def open_all(stack: ExitStack, starts: Sequence[Start]) -> list[Peer]:
    """Every contestant up, one after another."""
    found = []
    for start in starts:
        say(f"starting {start.name}")
        found.append(stack.enter_context(opened(start)))
    return found


def take_turns(
    who: Sequence[Any], rounds: int, what: str, measure: Callable[[Any], list[float]]
) -> dict[str, list[float]]:
    """A warm-up of each, then all in turn."""
    samples: dict[str, list[float]] = {each.name: [] for each in who}
    for number in range(rounds + 1):
        turn = number % len(who)
        for each in (*who[turn:], *who[:turn]):
            seconds = measure(each)
            middle = render_seconds(sorted(seconds)[len(seconds) // 2])
            say(f"{what}: {each.name} {middle}{'' if number else ' (warm-up)'}")
            if number:
                samples[each.name] += seconds
    return samples


_NUMBERS = count()


def time_edits(
    setup: Setup, who: Sequence[Contestant], what: str, do: str
) -> dict[str, list[float]]:
    """One line is another each time; a pause before it leaves time to make spare ranks."""

    def measure(each: Contestant) -> list[float]:
        time.sleep(setup.pause_s)
        return [each.edit(do, 100 + next(_NUMBERS) % 900)]

    return take_turns(who, setup.rounds, what, measure)


def missing(setup: Setup, case: str, names: Sequence[str]) -> list[Line]:
    """A line for each peer that is not installed."""
    return [
        Line(case=case, who=name, note=INSTALL[name]) for name in names if not setup.pythons[name]
    ]


def find_python(given: str, module: str) -> str:
    """The Python that has this module, or nothing."""
    python = given or sys.executable
    if shutil.which(python) is None:
        raise SystemExit(f"warm: {python} is not there: name a Python that has {module}")
    script = f"import importlib.util, sys; sys.exit(not importlib.util.find_spec({module!r}))"
    has = subprocess.run([python, "-c", script], check=False, timeout=60).returncode == 0
    if given and not has:
        raise SystemExit(f"warm: {python} has no {module}: install it there")
    return python if has else ""


def read_version(python: str, package: str) -> str:
    """The version of a package that this Python has."""
    if not python:
        return "not here"
    script = f"from importlib.metadata import version; print(version({package!r}))"
    command = [python, "-c", script]
    return subprocess.check_output(command, text=True, timeout=60).strip()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
