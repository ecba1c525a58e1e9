"""The keywords of an app, and the settings they mean; flags in texts, as keywords of Python.

Names only: values are checked by the settings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from windlass.client.keywords import APP
from windlass.errors import SpecError
from windlass.near_names import did_you_mean
from windlass.settings.table import BY_NAME

# a compute's word for it -> the setting's
_SPELT = {"launch_timeout": "join_timeout_s", "pod_patch": "patch"}
_NOT_FLAGS = ("working_dir", "root", "image", "volumes", "secrets")  # read elsewhere
KEYWORDS = frozenset(keyword.name for keyword in APP)


_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*\b(?: (soft|hard))?")
_SAID = {setting.flag: f"{name}=" for name, setting in BY_NAME.items()} | {
    "--nodes": "workers=",
    "--timeout": "timeout=",
    "--join-timeout": "launch_timeout",  # never with a value behind it
}


def speak_python(text: str) -> str:
    """The text with flags of the command line as the keywords that they are in Python."""

    def say(match: re.Match[str]) -> str:
        flag, _, value = match[0].partition(" ")
        said = _SAID.get(flag)
        if said is None:
            return match[0]
        return f'{said}"{value}"' if value else said

    return _FLAG.sub(say, text)


def check_keywords(what: str, given: Mapping[str, Any], *, own: tuple[str, ...]) -> None:
    """Refuse a keyword that is not there, and name the nearest that is."""
    for name in given:
        if name in KEYWORDS:
            continue
        hint = did_you_mean(name, sorted({*KEYWORDS, *own}), show=repr)
        raise SpecError(f"{what} has no keyword {name!r}", hint=hint)


def make_flags(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the keywords mean."""
    return {
        _SPELT.get(name, name): value for name, value in given.items() if name not in _NOT_FLAGS
    }
