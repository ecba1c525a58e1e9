"""Durations as people write them: `90`, "90s", "5m", "1h30m". Pure."""

from __future__ import annotations

import math
import re

from windlass.errors import SpecError

DURATION_FORMS = "90, 90s, 5m, 1h30m or 2d"
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
        raise SpecError(f"{text!r:.60} is not a duration", hint=f"write it like {DURATION_FORMS}")
    return seconds


def _read_units(text: str) -> float:
    number = r"(\d+(?:\.\d+)?)"
    pattern = r"\s*".join(f"(?:{number}{unit})?" for unit in _UNITS_S)
    match = re.fullmatch(pattern, text.strip(), re.ASCII)
    if not match or not any(match.groups()):
        return math.nan
    return sum(float(n) * s for n, s in zip(match.groups(), _UNITS_S.values(), strict=True) if n)
