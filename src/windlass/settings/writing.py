"""Writing one setting into the project's windlass.toml, for `windlass config set`.

Changes one line and keeps the rest of the file, comments included. The result is read back before it
replaces the file.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from windlass.errors import SpecError
from windlass.settings.reading import (
    PROJECT_FILE,
    Source,
    find_project_file,
    parse_toml,
    read_setting,
)
from windlass.settings.table import find_setting

_TABLE = re.compile(r"^\s*\[", re.MULTILINE)


def set_in_project(name: str, text: str, folder: Path, root: Path) -> Path:
    """Set a setting in the project file that holds in `folder`, or in a new one in `root`.

    Return the path of the file.
    """
    setting = find_setting(name)
    if setting.kind in ("table", "patch"):
        raise SpecError(
            f"{name} is a table, which this command cannot set", hint=f"edit {PROJECT_FILE}"
        )
    value = read_setting(setting, text, Source(values={}, source="flag", folder=folder), os.environ)
    line = f"{name} = {_render(text, value)}"
    path, table = find_project_file(folder)
    if table is None:
        path = root / PROJECT_FILE
    if path.name != PROJECT_FILE:
        raise SpecError(
            f"the settings of this project are in {path}, which this command does not change",
            hint=f"add under [tool.windlass]: {line}",
        )
    content = path.read_text(encoding="utf-8") if path.exists() else ""
    changed = _replace_line(content, name, line)
    try:
        is_kept = parse_toml(path, changed.encode()) == {
            **parse_toml(path, content.encode()),
            name: parse_toml(path, line.encode())[name],
        }
    except SpecError:
        is_kept = False
    if not is_kept:
        raise SpecError(f"cannot change {name} in {path}", hint=f"add it manually: {line}")
    _write(path, changed)
    return path


def _write(path: Path, content: str) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(content, encoding="utf-8")
        if path.exists():
            shutil.copymode(path, beside)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise SpecError(
            f"cannot write {path}: {error.strerror or error}", hint="make its folder writable"
        ) from error


def _replace_line(content: str, name: str, line: str) -> str:
    """Return the file with this line among its first keys, before any table."""
    start = _TABLE.search(content)
    end = start.start() if start else len(content)
    head, rest = content[:end], content[end:]
    own = re.compile(rf"^[ \t]*{re.escape(name)}[ \t]*=.*$", re.MULTILINE)
    if own.search(head):
        return own.sub(lambda _: line, head, count=1) + rest
    if head and not head.endswith("\n"):
        head += "\n"
    return f"{head}{line}\n{rest}"


def _render(text: str, value: Any) -> str:
    if isinstance(value, (bool, int)):
        return json.dumps(value)
    if isinstance(value, tuple):
        return json.dumps(list(value), ensure_ascii=False)
    return json.dumps(text, ensure_ascii=False)
