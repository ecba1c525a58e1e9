"""Reading settings: flags > environment > project file > user file > default.

Performs no I/O except reading the two files. The environment and the start folder are arguments. A file names
programs that will be run, so a file that another user may have written is ignored with a warning.
"""

from __future__ import annotations

import functools
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from windlass.errors import SpecError
from windlass.near_names import did_you_mean
from windlass.settings.table import (
    BY_NAME,
    SETTINGS,
    NodeRange,
    Setting,
    Settings,
    find_setting,
    place,
    user_home,
)
from windlass.trusted import find_settings_fault, is_open_to_everybody, open_now

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any, NoReturn

PROJECT_FILE = "windlass.toml"


def start_folder() -> Path:
    """Return the folder where the search for project settings starts.

    This is the current folder, or the home folder if the current folder no longer exists.
    """
    from pathlib import Path

    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path.home()


def read_settings_here(flags: Mapping[str, object]) -> Settings:
    """Return the settings of this process with these flags."""
    return read_settings(flags=flags, environ=os.environ, start=start_folder())


def read_settings(
    *,
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    start: Path,
    user_file: Path | None = None,
) -> Settings:
    """Return the settings that apply in the folder `start`. A flag that is None was not given.

    The keys of a table (`env`) are merged from all sources. For other settings the source with the highest
    priority wins. `user_file` defaults to the file below $XDG_CONFIG_HOME or ~/.config.
    """
    for name in flags:
        find_setting(name)
    user_file = user_file or place(environ, "XDG_CONFIG_HOME", ".config") / "config.toml"
    variables = {s.name: environ[s.variable] for s in SETTINGS if environ.get(s.variable)}
    start = start.absolute()
    layers = [
        Source(values=flags, source="flag", folder=start),
        Source(values=variables, source="environment", folder=start),
    ]
    for path, table in (find_project_file(start), (user_file, _read_table(user_file))):
        if table is not None:
            _check_keys(path, table)
            layers.append(Source(values=table, source=str(path), folder=path.parent))
    resolved = {s.name: _resolve(s, layers, environ) for s in SETTINGS}
    values: dict[str, Any] = {name: value for name, (value, _) in resolved.items()}
    return Settings(**values, origins={name: origin for name, (_, origin) in resolved.items()})


def _resolve(
    setting: Setting, layers: Sequence[Source], environ: Mapping[str, str]
) -> tuple[Any, str]:
    # Layers that are overridden are read too, so that a mistake in a file is reported early.
    given = [
        (read_setting(setting, layer.values[setting.name], layer, environ), layer.origin(setting))
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


def find_project_file(start: Path) -> tuple[Path, Mapping[str, object] | None]:
    """Return the nearest windlass.toml, or pyproject.toml with [tool.windlass], at `start` or above.

    The search stops before a folder above `start` that every user may write to, like /tmp.
    """
    for folder in (start, *start.parents):
        if folder != start and is_open_to_everybody(folder):
            _warn_about_ignored_parents(folder)
            break
        if (values := _read_table(folder / PROJECT_FILE)) is not None:
            return folder / PROJECT_FILE, values
        project = folder / "pyproject.toml"
        if (values := _read_table(project, "tool", "windlass")) is not None:
            return project, values
    return start / PROJECT_FILE, None


def _read_table(path: Path, *keys: str) -> Mapping[str, object] | None:
    try:
        with open(path, "rb", opener=open_now) as file:
            if fault := find_settings_fault(file.fileno(), path):
                _warn_ignored(path, fault)
                return None
            content = file.read()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        # A folder above that this user may not enter is not part of the project. A file in it is.
        if not os.access(path.parent, os.X_OK):
            return None
        raise SpecError(
            f"cannot read {path}: {error.strerror}", hint="make the file readable, or remove it"
        ) from error
    if keys and keys[-1].encode() not in content:
        return None
    table: Any = parse_toml(path, content)
    for key in keys:
        table = table.get(key) if isinstance(table, Mapping) else None
    if table is not None and not isinstance(table, Mapping):
        raise SpecError(
            f"{'.'.join(keys)} in {path} must be a table", hint=f"write [{'.'.join(keys)}]"
        )
    return table


def _warn_about_ignored_parents(shared: Path) -> None:
    for folder in (shared, *shared.parents):
        path = folder / PROJECT_FILE
        if os.path.lexists(path):
            _warn_ignored(path, f"any user may write to {shared}")


@functools.cache
def _warn_ignored(path: Path, why: str) -> None:
    """Warn about an ignored file, once per process because settings are read often."""
    import logging

    logging.getLogger(__name__).warning(
        "%s is ignored: %s; pass its settings as flags or as variables (WINDLASS_...) instead",
        path,
        why,
    )


def parse_toml(path: Path, content: bytes) -> Mapping[str, object]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        parsed: dict[str, object] = tomllib.loads(content.decode())
    except ValueError as error:
        raise SpecError(
            f"{path} is not valid TOML: {error}", hint="correct that line of the file"
        ) from error
    return parsed


def _check_keys(path: Path, values: Mapping[str, object]) -> None:
    for key in values:
        if key not in BY_NAME:
            hint = did_you_mean(key, BY_NAME, show=repr)
            raise SpecError(f"unknown setting {key!r} in {path}", hint=hint)


DURATION_FORMS = "90, 90s, 5m, 1h30m or 2d"
_UNITS_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_YES_NO = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


def read_duration(text: str | float) -> float:
    """Return the seconds in `90`, "90s", "5m", "1h30m", "2d" or "250ms". Larger units come first."""
    try:
        seconds = math.nan if isinstance(text, bool) else float(text)
    except OverflowError:
        seconds = math.inf
    except (TypeError, ValueError):
        seconds = _read_units(str(text))
    if not (math.isfinite(seconds) and seconds >= 0):
        raise SpecError(
            f"invalid duration {text!r:.60}", hint=f"use a form such as {DURATION_FORMS}"
        )
    return seconds


def _read_units(text: str) -> float:
    number = r"(\d+(?:\.\d+)?)"
    pattern = r"\s*".join(f"(?:{number}{unit})?" for unit in _UNITS_S)
    match = re.fullmatch(pattern, text.strip(), re.ASCII)
    if not match or not any(match.groups()):
        return math.nan
    return sum(float(n) * s for n, s in zip(match.groups(), _UNITS_S.values(), strict=True) if n)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
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
        raise SpecError(f"{subject} must be {expected}, not {raw!r:.60}", hint=setting.description)


def read_setting(setting: Setting, raw: object, layer: Source, environ: Mapping[str, str]) -> Any:
    value: Any = _READERS[setting.kind](setting, raw, layer)
    if value is None:
        return None
    if setting.choices and value not in setting.choices:
        layer.refuse(setting, f"one of {', '.join(setting.choices)}", raw)
    if setting.minimum is not None and isinstance(value, int) and value < setting.minimum:
        layer.refuse(setting, f"at least {setting.minimum}", raw)
    if setting.above is not None and value <= setting.above:
        layer.refuse(setting, f"more than {setting.above:g}", raw)
    if setting.kind == "path":
        inside = value == "~" or value.startswith("~/")
        return str(user_home(environ) / value[2:] if inside else layer.folder / value)
    return value


def _is_none(setting: Setting, raw: object) -> bool:
    return setting.may_be_none and isinstance(raw, str) and raw.lower() == "none"


def _read_str(setting: Setting, raw: object, layer: Source) -> str:
    return raw if isinstance(raw, str) else layer.refuse(setting, "text", raw)


def _read_path(setting: Setting, raw: object, layer: Source) -> str:
    return _read_str(setting, os.fspath(raw) if isinstance(raw, os.PathLike) else raw, layer)


def _read_int(setting: Setting, raw: object, layer: Source) -> int | None:
    if _is_none(setting, raw):
        return None
    # TOML has numbers, so a quoted "2" in a file is a mistake.
    if isinstance(raw, str) and layer.is_text and re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", raw):
        return int(raw)
    if isinstance(raw, bool) or not isinstance(raw, int):
        layer.refuse(setting, "a whole number", raw)
    return raw


def _read_time(setting: Setting, raw: object, layer: Source) -> float | None:
    if _is_none(setting, raw):
        return None
    try:
        return read_duration(raw) if isinstance(raw, (str, int, float)) else read_duration("")
    except SpecError:
        layer.refuse(setting, f"a duration like {DURATION_FORMS}", raw)


def _read_list(setting: Setting, raw: object, layer: Source) -> tuple[str, ...]:
    if isinstance(raw, str) and layer.is_text:
        items = [item.strip() for item in raw.split(",")]
        return () if items == ["none"] else tuple(item for item in items if item)
    if not isinstance(raw, (list, tuple)) or not all(isinstance(item, str) for item in raw):
        layer.refuse(setting, "a list of texts", raw)
    return tuple(raw)


def _read_many(setting: Setting, raw: object, layer: Source) -> tuple[str, ...]:
    """Read a list from a repeated flag, each with one item or several separated by commas."""
    if layer.is_text and isinstance(raw, str):
        raw = [raw]
    texts = _read_list(setting, raw, layer)
    if not layer.is_text:
        return texts
    items = [item.strip() for text in texts for item in text.split(",")]
    return () if items == ["none"] else tuple(item for item in items if item)


def _read_texts(setting: Setting, raw: object, layer: Source) -> dict[str, str]:
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


def _read_bool(setting: Setting, raw: object, layer: Source) -> bool:
    if isinstance(raw, str) and layer.is_text and raw.lower() in _YES_NO:
        return _YES_NO[raw.lower()]
    return raw if isinstance(raw, bool) else layer.refuse(setting, "true or false", raw)


def _read_quantity(setting: Setting, raw: object, layer: Source) -> str:
    """Return the text as it will be sent. It is checked where it is used."""
    if isinstance(raw, bool) or not isinstance(raw, (str, int, float)):
        layer.refuse(setting, "a number, or text like 500m or 512Gi", raw)
    return raw.strip() if isinstance(raw, str) else f"{raw:.9f}".rstrip("0").rstrip(".")


def _read_nodes(setting: Setting, raw: object, layer: Source) -> int | NodeRange | None:
    if isinstance(raw, NodeRange):
        return _check_range(setting, raw, raw, layer)
    match = re.fullmatch(r"\s*([0-9]{1,9}):([0-9]{1,9})\s*", raw) if isinstance(raw, str) else None
    if not match:
        return _read_int(setting, raw, layer)
    return _check_range(setting, NodeRange(min=int(match[1]), max=int(match[2])), raw, layer)


def _check_range(
    setting: Setting, nodes: NodeRange, raw: object, layer: Source
) -> int | NodeRange | None:
    if not 1 <= nodes.min <= nodes.max:
        layer.refuse(setting, "MIN:MAX with 1 <= MIN <= MAX", raw)
    return nodes.max if nodes.min == nodes.max else nodes


def _read_patch(setting: Setting, raw: object, layer: Source) -> str | dict[str, object]:
    """Return a table, YAML text or a file path, resolved against the folder of the setting's source."""
    if isinstance(raw, os.PathLike):
        raw = os.fspath(raw)
    if isinstance(raw, Mapping):
        return dict(raw)
    if not isinstance(raw, str):
        layer.refuse(setting, "a table, YAML or the path of a YAML file", raw)
    is_yaml = ":" in raw or "\n" in raw or "{" in raw
    return raw if is_yaml else str(layer.folder / raw)


_READERS: Mapping[str, Callable[[Setting, object, Source], object]] = {
    "str": _read_str,
    "path": _read_path,
    "int": _read_int,
    "duration": _read_time,
    "list": _read_list,
    "table": _read_texts,
    "many": _read_many,
    "bool": _read_bool,
    "quantity": _read_quantity,
    "nodes": _read_nodes,
    "patch": _read_patch,
}
