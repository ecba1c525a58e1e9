"""The one table, a line a setting: flags, variables, file keys and checks all come from it.

A record of values and where each came from. How they are read is `settings.reading`; what a setting means
to a job is no matter of this package.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields

from windlass.errors import SpecError
from windlass.settings.places import state_home
from windlass.settings.setting import Setting
from windlass.settings.setting import is_setting as _is

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting's value, and where it came from."""

    engine: str = _is("str", "local", "what gives the nodes")
    nodes: int = _is("int", 1, "how many nodes", minimum=1)
    procs: int | None = _is("int", None, "ranks a node; none: one", minimum=1)
    name: str = _is("str", "", "the job's name; empty: made from the work")
    env: Mapping[str, str] = _is("table", {}, "environment variables of every rank")
    start: str = _is("str", "fork", "how ranks start", choices=("fork", "spawn"))
    preload: tuple[str, ...] | None = _is(
        "list", None, "modules imported once, before the ranks start; unset: seen in the source"
    )
    python: str = _is("str", "", "the nodes' interpreter; empty: this one")
    restarts: int = _is("int", 0, "how often to start again when the code failed", minimum=0)
    timeout_s: float | None = _is(
        "duration", None, "end the job this long after its first start", above=0
    )
    grace_s: float = _is("duration", 10.0, "from SIGTERM to SIGKILL")
    lease_s: float = _is("duration", 5.0, "how long a job outlives a client that went away")
    join_timeout_s: float = _is("duration", 60.0, "how long to wait for all nodes")
    home: str = _is("path", state_home, "the folder of jobs and their logs")
    origins: Mapping[str, str] = field(repr=False)

    def value(self, name: str) -> Any:
        return getattr(self, find_setting(name).name)

    def __getitem__(self, name: str) -> Any:
        return self.value(name)

    def origin(self, name: str) -> str:
        """Like "flag --nodes", "environment WINDLASS_NODES", "/my/windlass.toml" or "default"."""
        return self.origins[find_setting(name).name]

    def items(self) -> Iterator[tuple[str, Any]]:
        return ((setting.name, getattr(self, setting.name)) for setting in SETTINGS)


SETTINGS = tuple(Setting(name=f.name, **f.metadata) for f in fields(Settings) if f.metadata)
BY_NAME = {setting.name: setting for setting in SETTINGS}


def find_setting(name: str) -> Setting:
    if name not in BY_NAME:
        raise SpecError(f"there is no setting {name!r}", hint=nearest(name))
    return BY_NAME[name]


def nearest(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, BY_NAME, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(BY_NAME)}"
