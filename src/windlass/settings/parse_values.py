"""Parses the text of a setting into its value: numbers, durations, lists, paths, yes and no.

Errors say where the text came from. Used by `settings.reading` and `settings.writing`; `read_duration` by
clients, too.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from windlass.errors import SpecError
from windlass.settings.table import NodeRange, Setting, user_home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any, NoReturn


DURATION_FORMS = "90, 90s, 5m, 1h30m or 2d"
_UNITS_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_YES_NO = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


def read_duration(text: str | float) -> float:
    """Seconds in `90`, "90s", "5m", "1h30m", "2d" or "250ms"; units from great to small."""
    try:
        seconds = math.nan if isinstance(text, bool) else float(text)
    except OverflowError:
        seconds = math.inf
    except (TypeError, ValueError):
        seconds = _read_units(str(text))
    if not (math.isfinite(seconds) and seconds >= 0):
        raise SpecError(f"{text!r:.60} is not a duration", hint=f"write it like {DURATION_FORMS}")
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
        raise SpecError(f"{subject} must be {expected}, found {raw!r:.60}", hint=setting.hint)


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
    # A file has numbers of its own, so there "2" in quotes is a mistake.
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
    """A list whose flag is given again for more, each perhaps with several behind commas."""
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
    """Text as it will be sent; what it must look like is checked where it is used."""
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
    """A table, YAML, or the path of a file that holds it: seen from where it was written."""
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
