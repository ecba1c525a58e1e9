"""Keywords of computes and apps: checks of their values, and the corresponding settings. No I/O.

Values are checked when they are passed, for every engine. `windlass.client.compute.nodes.compute_spec`
combines them into a spec.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from windlass.client.keywords import APP
from windlass.errors import SpecError
from windlass.near_names import did_you_mean
from windlass.settings.table import BY_NAME
from windlass.spec.node_resources import check_bytes, check_cpus

_TABLES = ("env", "node_selector", "labels", "annotations")
_LISTS = ("secrets", "volumes", "tolerations")
_TEXTS = ("gpu_type", "namespace", "priority_class", "service_account", "queue", "working_dir")
_MORE_TEXTS = ("name", "engine", "root")
# keyword of a compute -> name of the setting
_SPELLED = {"launch_timeout": "join_timeout_s", "pod_patch": "patch"}
_NOT_FLAGS = ("working_dir", "root", "image", "volumes", "secrets")  # read elsewhere
KEYWORDS = frozenset(keyword.name for keyword in APP)


_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*\b(?: (soft|hard))?")
_KEYWORD_OF = {setting.flag: f"{name}=" for name, setting in BY_NAME.items()} | {
    "--nodes": "workers=",
    "--timeout": "timeout=",
    "--join-timeout": "launch_timeout",  # hints never contain a value for it
}


def read_words(command: str, what: str, *, example: str) -> list[str]:
    """Split a command into words. `what` names the command in messages."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise SpecError(
            f"cannot parse {what}: {error}", hint="close its quotes, as in a shell"
        ) from error
    if not words:
        raise SpecError(f"{what} is empty", hint=example)
    return words


def check_values(given: Mapping[str, Any]) -> None:
    """Raise SpecError for values of the wrong type or range."""
    for name, value in given.items():
        if value is None:
            continue
        if name in _TABLES and not isinstance(value, Mapping):
            raise _wrong(name, value, "a dict", f'{name}={{"KEY": "value"}}')
        if name in _LISTS and not isinstance(value, (list, tuple)):
            raise _wrong(name, value, "a list", f"{name}=[...]")
        if name in (*_TEXTS, *_MORE_TEXTS) and not isinstance(value, str):
            raise _wrong(name, value, "text", f'{name}="..."')
        if name == "gpus" and (type(value) is not int or value < 0):
            raise _wrong(name, value, "0 or more", "gpus=8")
        if name in ("cpus", "memory", "shm"):
            _check_quantity(name, value)


def _check_quantity(name: str, value: Any) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number and not isinstance(value, str):
        raise _wrong(name, value, "a number or text", f'{name}="8"')
    if is_number and value <= 0:
        raise _wrong(
            name, value, "more than 0", f'{name}="8"' if name == "cpus" else f'{name}="8Gi"'
        )
    check = check_cpus if name == "cpus" else check_bytes
    check(name, str(value))


def _wrong(name: str, value: Any, wanted: str, example: str) -> SpecError:
    return SpecError(
        f"{name} must be {wanted}, not {value!r:.60}", hint=f"use a value such as {example}"
    )


def speak_python(text: str) -> str:
    """Return the text with command-line flags replaced by the keywords of Python."""

    def say(match: re.Match[str]) -> str:
        flag, _, value = match[0].partition(" ")
        keyword = _KEYWORD_OF.get(flag)
        if keyword is None:
            return match[0]
        return f'{keyword}"{value}"' if value else keyword

    return _FLAG.sub(say, text)


def check_app_keywords(what: str, given: Mapping[str, Any], *, own: tuple[str, ...]) -> None:
    """Raise SpecError for an unknown keyword, and suggest the most similar known one."""
    for name in given:
        if name in KEYWORDS:
            continue
        hint = did_you_mean(name, sorted({*KEYWORDS, *own}), show=repr)
        raise SpecError(f"{what} has no keyword {name!r}", hint=hint)


def make_setting_flags(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that correspond to the keywords."""
    return {
        _SPELLED.get(name, name): value for name, value in given.items() if name not in _NOT_FLAGS
    }
