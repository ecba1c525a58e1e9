"""Reading settings: flags > environment > project file > user file > default.

Pure but for reading the two files: the environment and the folder to start from are arguments. A file names
programs that will be run, so one that somebody else may have put there is ignored, and that is said.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping, Sequence

from windlass.errors import SpecError
from windlass.near_names import did_you_mean
from windlass.settings.parse_values import Source, read_setting
from windlass.settings.table import BY_NAME, SETTINGS, Setting, Settings, find_setting, place
from windlass.trusted import find_settings_fault, is_open_to_everybody, open_now

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

PROJECT_FILE = "windlass.toml"


def start_folder() -> Path:
    """Where project settings are looked for: here, unless this folder is gone."""
    from pathlib import Path

    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path.home()


def read_settings_here(flags: Mapping[str, object]) -> Settings:
    """All settings as they hold for this process, with these flags."""
    return read_settings(flags=flags, environ=os.environ, start=start_folder())


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
    # Every layer is read, also those that lose: a mistake in a file is told on the first day.
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
    """The nearest windlass.toml, or pyproject.toml with [tool.windlass], at `start` or above.

    Not in a folder above that everybody may write to, like /tmp, nor beyond it.
    """
    for folder in (start, *start.parents):
        if folder != start and is_open_to_everybody(folder):
            _say_what_lies_beyond(folder)
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
                _say_ignored(path, fault)
                return None
            content = file.read()
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
    table: Any = parse_toml(path, content)
    for key in keys:
        table = table.get(key) if isinstance(table, Mapping) else None
    if table is not None and not isinstance(table, Mapping):
        raise SpecError(
            f"{'.'.join(keys)} in {path} must be a table", hint=f"write [{'.'.join(keys)}]"
        )
    return table


def _say_what_lies_beyond(shared: Path) -> None:
    for folder in (shared, *shared.parents):
        path = folder / PROJECT_FILE
        if os.path.lexists(path):
            _say_ignored(path, f"anybody may write to {shared}")


@functools.cache
def _say_ignored(path: Path, why: str) -> None:
    """Once: settings are read often."""
    import logging

    logging.getLogger(__name__).warning(
        "%s is ignored: %s; what it sets may also be given as flags, or as variables (WINDLASS_...)",
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
        raise SpecError(f"{path} is not TOML: {error}", hint="correct that line") from error
    return parsed


def _check_keys(path: Path, values: Mapping[str, object]) -> None:
    for key in values:
        if key not in BY_NAME:
            hint = did_you_mean(key, BY_NAME, show=repr)
            raise SpecError(f"unknown setting {key!r} in {path}", hint=hint)
