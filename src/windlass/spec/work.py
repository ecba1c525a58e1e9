"""Work: what every rank runs. A function, a script, a module or a command.

Records only. How a target given by a user becomes one of these is `client.target`; how a rank
runs it is `agent.rank`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A callable. Its arguments, and the callable unless `file` names it, travel as the job's payload."""

    kind: ClassVar[str] = "function"
    name: str
    file: str | None = None

    @property
    def label(self) -> str:
        return f"{self.file}::{self.name}" if self.file else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A Python file, run as `__main__`."""

    kind: ClassVar[str] = "script"
    path: str
    args: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return " ".join((self.path, *self.args))


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A Python module, run as `python -m` runs it."""

    kind: ClassVar[str] = "module"
    name: str
    args: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return " ".join(("-m", self.name, *self.args))


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Any program. Exit code 0 is success; it has no result."""

    kind: ClassVar[str] = "command"
    argv: tuple[str, ...]

    @property
    def label(self) -> str:
        return " ".join(self.argv)


Work = Function | Script | Module | Command
