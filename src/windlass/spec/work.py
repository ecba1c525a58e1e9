"""Work of a job or compute, and the steps of an image that run before it, as records.

`client.jobs.target` creates the work from a user's target. Ranks run it in `agent.rank.rank_main`. Nodes run
the steps in `agent.image_steps`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from windlass import records


@dataclass(frozen=True, slots=True, kw_only=True)
class PipStep:
    """Packages for `pip install`, as its arguments."""

    kind: ClassVar[str] = "pip"
    packages: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStep:
    """A command that `sh -c` runs in the project's folder."""

    kind: ClassVar[str] = "run"
    command: str


ImageStep = PipStep | RunStep


def read_step(data: Any) -> ImageStep:
    """Return the step in JSON data. Raise ProtocolError if its kind is unknown."""
    return cast(ImageStep, records.read(cast(type, ImageStep), data))


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A callable. The job's payload has its arguments, and the callable itself unless `file` names it."""

    kind: ClassVar[str] = "function"
    framework: ClassVar[str] = "pytorch"
    name: str
    file: str | None = None

    @property
    def label(self) -> str:
        return f"{self.file}::{self.name}" if self.file else self.name

    @property
    def program(self) -> str:
        """The label without arguments, which other users may see."""
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
    """A Python module, run like `python -m`."""

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
    """Any program. Exit code 0 is success. It has no result."""

    kind: ClassVar[str] = "command"
    framework: ClassVar[str] = "command"
    argv: tuple[str, ...]
    procs: int = 0  # processes that it starts itself on a node, as torchrun does

    @property
    def label(self) -> str:
        return " ".join(self.argv)

    @property
    def program(self) -> str:
        return self.argv[0] if self.argv else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Work of a compute. Its nodes wait and run the calls of clients."""

    kind: ClassVar[str] = "calls"
    framework: ClassVar[str] = "pytorch"
    fixed: str = ""  # digest of the settings that cannot change while the nodes run
    about: Mapping[str, str] = field(default_factory=dict)  # fixed settings that the plan lacks
    ttl_s: float | None = None  # how long idle nodes are kept
    steps: tuple[ImageStep, ...] = ()  # steps of the image, run once on each node
    user: str = ""  # the user that started the nodes
    identity: str = ""  # the cluster's name for that user, if known
    place_s: float | None = (
        None  # how long the compute stays queued after its last client has exited
    )

    @property
    def label(self) -> str:
        return "compute"

    @property
    def program(self) -> str:
        return self.label


Work = Function | Script | Module | Command | Calls
