"""How a callable is spread over nodes: the framework, how many nodes, how many ranks on each.

`workers="2:4"` are four nodes, or fewer if there are no more, but never fewer than two.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from windlass.agent.frameworks.framework_table import check_framework, choose_framework
from windlass.client.keywords import ALSO
from windlass.errors import SpecError
from windlass.near_names import did_you_mean
from windlass.settings import read_settings, start_folder

_RANGE = re.compile(r"\s*(\d{1,6})\s*:\s*(\d{1,6})\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """How many nodes, and how many ranks on each (None: one per GPU, else one)."""

    framework: str = "pytorch"
    workers: int = 1
    procs: int | None = None
    min_workers: int = 0  # a call may start with so many; 0: all of them


def make_spread(
    framework: str = "pytorch", *, workers: int | str = 1, procs: int | None = None, **more: Any
) -> Distribution:
    """What `.distribute` was told, checked; other tools' words mean the same. Pure."""
    for name, value in more.items():
        if ALSO.get(name) == "workers":
            workers = value
        elif ALSO.get(name) == "procs":
            procs = value
        else:
            hint = did_you_mean(name, ("framework", "workers", "procs"), show=repr)
            raise SpecError(f"distribute has no keyword {name!r}", hint=hint)
    check_framework(framework)
    fewest, most = _read_workers(workers)
    if procs is not None and not _is_count(procs):
        raise SpecError(f"procs must be 1 or more, not {procs!r}", hint="procs=2")
    return Distribution(framework=framework, workers=most, procs=procs, min_workers=fewest)


def default_framework() -> str:
    """The framework of the settings, for a `.distribute` that names none."""
    settings = read_settings(flags={}, environ=os.environ, start=start_folder())
    return choose_framework(settings.framework, is_command=False).name


def _read_workers(given: Any) -> tuple[int, int]:
    """The fewest nodes that will do (0: all of them), and the most."""
    if _is_count(given):
        return 0, given
    match = _RANGE.fullmatch(given) if isinstance(given, str) else None
    fewest, most = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= fewest <= most:
        hint = 'workers=2, or workers="2:4" for at least 2'
        raise SpecError(f"workers must be 1 or more, or MIN:MAX, not {given!r:.60}", hint=hint)
    return (fewest if fewest < most else 0), most


def _is_count(given: Any) -> bool:
    return type(given) is int and given >= 1
