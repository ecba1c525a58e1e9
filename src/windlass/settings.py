"""Settings: flags > environment > project file > user file > default, and where each came from.

`Settings` is the one table, a line a setting: flags, variables, file keys and checks come from it.
Pure but for reading the two files: the environment and the folder to start from are arguments.
Every command imports this, so parsers are loaded on use. What a setting means to a job is no matter
of this module.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields

from windlass.errors import SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any, NoReturn

PROJECT_FILE = "windlass.toml"
_DURATION_FORMS = "90, 90s, 5m, 1h30m or 2d"
_UNITS_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def read_duration(text: str | float) -> float:
    """Seconds in `90`, "90s", "5m", "1h30m", "2d" or "250ms"; units from great to small."""
    try:
        seconds = math.nan if isinstance(text, bool) else float(text)
    except OverflowError:
        seconds = math.inf
    except (TypeError, ValueError):
        seconds = _read_units(str(text))
    if not (math.isfinite(seconds) and seconds >= 0):
        raise SpecError(f"{text!r:.60} is not a duration", hint=f"write it like {_DURATION_FORMS}")
    return seconds


def _read_units(text: str) -> float:
    number = r"(\d+(?:\.\d+)?)"
    pattern = r"\s*".join(f"(?:{number}{unit})?" for unit in _UNITS_S)
    match = re.fullmatch(pattern, text.strip(), re.ASCII)
    if not match or not any(match.groups()):
        return math.nan
    return sum(float(n) * s for n, s in zip(match.groups(), _UNITS_S.values(), strict=True) if n)


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

    @property
    def flag(self) -> str:
        """The flag that sets it; a time's flag drops the unit: `--timeout` sets `timeout_s`."""
        return "--" + self.name.removesuffix("_s").replace("_", "-")

    @property
    def variable(self) -> str:
        """The variable that sets it; empty for a table, which has no good form in one variable."""
        return "" if self.kind == "table" else "WINDLASS_" + self.name.upper()

    @property
    def hint(self) -> str:
        """What it is for, and what it is when it is left out."""
        has_default = not callable(self.default) and self.default not in (None, "", {})
        return f"{self.help}; {self.default} if left out" if has_default else self.help

    def default_in(self, environ: Mapping[str, str]) -> object:
        return self.default(environ) if callable(self.default) else self.default


def _place(environ: Mapping[str, str], variable: str, fallback: str) -> Path:
    from pathlib import Path

    # The XDG specification: a relative path there is invalid and must be ignored.
    if Path(environ.get(variable, "")).is_absolute():
        return Path(environ[variable]) / "windlass"
    return _user_home(environ) / fallback / "windlass"


def _user_home(environ: Mapping[str, str]) -> Path:
    from pathlib import Path

    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()


def _state_home(environ: Mapping[str, str]) -> str:
    return str(_place(environ, "XDG_STATE_HOME", ".local/state"))


def _is(
    kind: str, default: object | Callable[[Mapping[str, str]], object], text: str, **limits: object
) -> Any:
    return field(metadata={"kind": kind, "default": default, "help": text, **limits})


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
    home: str = _is("path", _state_home, "the folder of jobs and their logs")
    origins: Mapping[str, str] = field(repr=False)

    def value(self, name: str) -> Any:
        return getattr(self, _setting(name).name)

    def __getitem__(self, name: str) -> Any:
        return self.value(name)

    def origin(self, name: str) -> str:
        """Like "flag --nodes", "environment WINDLASS_NODES", "/my/windlass.toml" or "default"."""
        return self.origins[_setting(name).name]

    def items(self) -> Iterator[tuple[str, Any]]:
        return ((setting.name, getattr(self, setting.name)) for setting in SETTINGS)


SETTINGS = tuple(Setting(name=f.name, **f.metadata) for f in fields(Settings) if f.metadata)
_BY_NAME = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """One source of settings: "flag", "environment" or a file's path."""

    values: Mapping[str, object]
    source: str
    folder: Path

    @property
    def is_text(self) -> bool:
        return self.source in ("flag", "environment")

    def key(self, setting: Setting) -> str:
        return setting.flag if self.source == "flag" else setting.variable

    def origin(self, setting: Setting) -> str:
        return f"{self.source} {self.key(setting)}" if self.is_text else self.source

    def refuse(self, setting: Setting, expected: str, raw: object) -> NoReturn:
        subject = self.key(setting) if self.is_text else f"{setting.name} in {self.source}"
        raise SpecError(f"{subject} must be {expected}, found {raw!r:.60}", hint=setting.hint)


def start_folder() -> Path:
    """Where project settings are looked for: here, unless this folder is gone."""
    from pathlib import Path

    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path.home()


def read_settings(
    *,
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    start: Path,
    user_file: Path | None = None,
) -> Settings:
    """All settings as they hold in the folder `start`; a flag that is None was not given.

    A table (`env`) is joined over its sources, key by key; else the strongest source wins.
    `user_file` is the usual place below $XDG_CONFIG_HOME or ~/.config unless given.
    """
    for name in flags:
        _setting(name)
    user_file = user_file or _place(environ, "XDG_CONFIG_HOME", ".config") / "config.toml"
    variables = {s.name: environ[s.variable] for s in SETTINGS if environ.get(s.variable)}
    start = start.absolute()
    layers = [
        _Layer(values=flags, source="flag", folder=start),
        _Layer(values=variables, source="environment", folder=start),
    ]
    for path, table in (_find_project_file(start), (user_file, _read_table(user_file))):
        if table is not None:
            _check_keys(path, table)
            layers.append(_Layer(values=table, source=str(path), folder=path.parent))
    found = {s.name: _resolve(s, layers, environ) for s in SETTINGS}
    values: dict[str, Any] = {name: value for name, (value, _) in found.items()}
    return Settings(**values, origins={name: origin for name, (_, origin) in found.items()})


def _resolve(
    setting: Setting, layers: Sequence[_Layer], environ: Mapping[str, str]
) -> tuple[Any, str]:
    # Every layer is read, also those that lose: a mistake in a file is told on the first day.
    given = [
        (_read_value(setting, layer.values[setting.name], layer, environ), layer.origin(setting))
        for layer in layers
        if layer.values.get(setting.name) is not None
    ]
    given = given or [(setting.default_in(environ), "default")]
    if setting.kind != "table":
        return given[0]
    joined: dict[str, str] = {}
    for table, _ in reversed(given):
        joined.update(table)
    return joined, ", ".join(origin for _, origin in given)


def _setting(name: str) -> Setting:
    if name not in _BY_NAME:
        raise SpecError(f"there is no setting {name!r}", hint=_nearest(name))
    return _BY_NAME[name]


def _nearest(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, _BY_NAME, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_BY_NAME)}"


def _find_project_file(start: Path) -> tuple[Path, Mapping[str, object] | None]:
    """The nearest windlass.toml, or pyproject.toml with [tool.windlass], at `start` or above."""
    for folder in (start, *start.parents):
        if (values := _read_table(folder / PROJECT_FILE)) is not None:
            return folder / PROJECT_FILE, values
        project = folder / "pyproject.toml"
        if (values := _read_table(project, "tool", "windlass")) is not None:
            return project, values
    return start / PROJECT_FILE, None


def _read_table(path: Path, *keys: str) -> Mapping[str, object] | None:
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        # A folder above us that we may not enter is none of ours; a file we may not read is.
        if not os.access(path.parent, os.X_OK):
            return None
        raise SpecError(
            f"cannot read {path}: {error.strerror}", hint="make the file readable, or move it away"
        ) from error
    if keys and keys[-1].encode() not in content:
        return None
    table: Any = _parse(path, content)
    for key in keys:
        table = table.get(key) if isinstance(table, Mapping) else None
    if table is not None and not isinstance(table, Mapping):
        raise SpecError(
            f"{'.'.join(keys)} in {path} must be a table", hint=f"write [{'.'.join(keys)}]"
        )
    return table


def _parse(path: Path, content: bytes) -> Mapping[str, object]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        parsed: dict[str, object] = tomllib.loads(content.decode())
    except ValueError as error:
        raise SpecError(f"{path} is not TOML: {error}", hint="correct that line") from error
    return parsed


def _check_keys(path: Path, values: Mapping[str, object]) -> None:
    for key in values:
        if key not in _BY_NAME:
            raise SpecError(f"unknown setting {key!r} in {path}", hint=_nearest(key))


def _read_value(setting: Setting, raw: object, layer: _Layer, environ: Mapping[str, str]) -> Any:
    value: Any = _READERS[setting.kind](setting, raw, layer)
    if value is None:
        return None
    if setting.choices and value not in setting.choices:
        layer.refuse(setting, f"one of {', '.join(setting.choices)}", raw)
    if setting.minimum is not None and value < setting.minimum:
        layer.refuse(setting, f"at least {setting.minimum}", raw)
    if setting.above is not None and value <= setting.above:
        layer.refuse(setting, f"more than {setting.above:g}", raw)
    if setting.kind == "path":
        inside = value == "~" or value.startswith("~/")
        return str(_user_home(environ) / value[2:] if inside else layer.folder / value)
    return value


def _is_none(setting: Setting, raw: object) -> bool:
    return setting.default is None and isinstance(raw, str) and raw.lower() == "none"


def _read_str(setting: Setting, raw: object, layer: _Layer) -> str:
    return raw if isinstance(raw, str) else layer.refuse(setting, "text", raw)


def _read_path(setting: Setting, raw: object, layer: _Layer) -> str:
    return _read_str(setting, os.fspath(raw) if isinstance(raw, os.PathLike) else raw, layer)


def _read_int(setting: Setting, raw: object, layer: _Layer) -> int | None:
    if _is_none(setting, raw):
        return None
    # A file has numbers of its own, so there "2" in quotes is a mistake.
    if isinstance(raw, str) and layer.is_text and re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", raw):
        return int(raw)
    if isinstance(raw, bool) or not isinstance(raw, int):
        layer.refuse(setting, "a whole number", raw)
    return raw


def _read_time(setting: Setting, raw: object, layer: _Layer) -> float | None:
    if _is_none(setting, raw):
        return None
    try:
        return read_duration(raw) if isinstance(raw, (str, int, float)) else read_duration("")
    except SpecError:
        layer.refuse(setting, f"a duration like {_DURATION_FORMS}", raw)


def _read_list(setting: Setting, raw: object, layer: _Layer) -> tuple[str, ...]:
    if isinstance(raw, str) and layer.is_text:
        items = [item.strip() for item in raw.split(",")]
        return () if items == ["none"] else tuple(item for item in items if item)
    if not isinstance(raw, (list, tuple)) or not all(isinstance(item, str) for item in raw):
        layer.refuse(setting, "a list of texts", raw)
    return tuple(raw)


def _read_texts(setting: Setting, raw: object, layer: _Layer) -> dict[str, str]:
    if isinstance(raw, (list, tuple)) and layer.is_text:
        pairs = [str(item).partition("=") for item in raw]
        for key, equals, value in pairs:
            if not (key and equals):
                layer.refuse(setting, "given as NAME=VALUE", f"{key}{equals}{value}")
        return {key: value for key, _, value in pairs}
    if not isinstance(raw, Mapping):
        layer.refuse(setting, "a table of texts", raw)
    for key, value in raw.items():
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            layer.refuse(setting, f"a table of texts; put {key} in quotes", value)
    return {str(key): str(value) for key, value in raw.items()}


_READERS: Mapping[str, Callable[[Setting, object, _Layer], object]] = {
    "str": _read_str,
    "path": _read_path,
    "int": _read_int,
    "duration": _read_time,
    "list": _read_list,
    "table": _read_texts,
}
