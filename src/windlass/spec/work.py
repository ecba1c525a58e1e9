"""Work: what a job or a compute runs, as records; and the steps of an image that run before.

Records alone. What a user's target becomes is `client.jobs.target`; ranks run it in
`agent.rank.rank_main`, nodes run steps in `agent.image_steps`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from windlass import records


@dataclass(frozen=True, slots=True, kw_only=True)
class PipStep:
    """Packages, as words for `pip install`."""

    kind: ClassVar[str] = "pip"
    packages: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStep:
    """A command for `sh -c`, in the project's folder."""

    kind: ClassVar[str] = "run"
    command: str


ImageStep = PipStep | RunStep


def read_step(data: Any) -> ImageStep:
    """A step in its JSON form; one of a kind that is not known here is refused."""
    return cast(ImageStep, records.read(cast(type, ImageStep), data))


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A callable. Its arguments, and the callable unless `file` names it, travel as the job's payload."""

    kind: ClassVar[str] = "function"
    framework: ClassVar[str] = "pytorch"
    name: str
    file: str | None = None

    @property
    def label(self) -> str:
        return f"{self.file}::{self.name}" if self.file else self.name

    @property
    def program(self) -> str:
        """The same without arguments, as others may read it too."""
        return self.label


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A Python file, run as `__main__`."""

    kind: ClassVar[str] = "script"
    framework: ClassVar[str] = "pytorch"
    path: str
    args: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return " ".join((self.path, *self.args))

    @property
    def program(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A Python module, run as `python -m` runs it."""

    kind: ClassVar[str] = "module"
    framework: ClassVar[str] = "pytorch"
    name: str
    args: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return " ".join(("-m", self.name, *self.args))

    @property
    def program(self) -> str:
        return f"-m {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Any program. Exit code 0 is success; it has no result."""

    kind: ClassVar[str] = "command"
    framework: ClassVar[str] = "command"
    argv: tuple[str, ...]
    procs: int = 0  # how many processes it starts on a node itself, as torchrun does; 0: none

    @property
    def label(self) -> str:
        return " ".join(self.argv)

    @property
    def program(self) -> str:
        return self.argv[0] if self.argv else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Nothing yet: the nodes stay, and run what clients call. The work of a compute."""

    kind: ClassVar[str] = "calls"
    framework: ClassVar[str] = "pytorch"
    fixed: str = ""  # digest of what cannot change while the nodes live
    about: Mapping[str, str] = field(
        default_factory=dict
    )  # what of that is nowhere else in the plan
    ttl_s: float | None = None  # how long they stay when nothing is called
    steps: tuple[ImageStep, ...] = ()  # of the image, run once on each node
    user: str = ""  # who started them
    identity: str = ""  # and what the cluster calls him, where it tells
    place_s: float | None = None  # how long they wait for their machines if nobody waits any more

    @property
    def label(self) -> str:
        return "compute"

    @property
    def program(self) -> str:
        return self.label


Work = Function | Script | Module | Command | Calls
