"""Setting: one line of the table. Its flag, its variable and its bounds; never a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRange:
    """The fewest and the most nodes: `MIN:MAX`."""

    min: int
    max: int

    def __str__(self) -> str:
        return f"{self.min}:{self.max}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One line of the table: what may be set, and within which bounds."""

    name: str
    kind: str
    default: object
    help: str
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    above: float | None = None
    group: str = ""  # the heading it stands under in --help
    spelt: str = ""  # the flag, where it is not made from the name
    optional: bool = False  # "none" is a value of its own

    @property
    def flag(self) -> str:
        """The flag that sets it; a time's flag drops the unit: `--timeout` sets `timeout_s`."""
        return "--" + (self.spelt or self.name.removesuffix("_s").replace("_", "-"))

    @property
    def variable(self) -> str:
        """The variable that sets it; empty for a table, which has no good form in one variable."""
        return "" if self.kind == "table" else "WINDLASS_" + self.name.upper()

    @property
    def hint(self) -> str:
        """What it is for, and what it is when it is left out."""
        has_default = not callable(self.default) and self.default not in (None, "", {}, (), False)
        return f"{self.help}; {self.default} if left out" if has_default else self.help

    @property
    def may_be_none(self) -> bool:
        return self.optional or self.default is None

    def default_in(self, environ: Mapping[str, str]) -> object:
        return self.default(environ) if callable(self.default) else self.default


def is_setting(
    kind: str, default: object | Callable[[Mapping[str, str]], object], text: str, **limits: object
) -> Any:
    return field(metadata={"kind": kind, "default": default, "help": text, **limits})
