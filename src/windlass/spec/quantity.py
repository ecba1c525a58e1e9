"""Quantities of Kubernetes: `4`, "500m", "512Gi". Pure.

Numbers are kept as text, as the API server takes them; they become numbers only to be compared.
"""

from __future__ import annotations

import re

from windlass.errors import SpecError

_FORM = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(Ki|Mi|Gi|Ti|Pi|Ei|[num]|[kMGTPE]?)"
_POWERS = {"n": 0, "u": 3, "m": 6, "": 9, "k": 12, "M": 15, "G": 18, "T": 21, "P": 24, "E": 27}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
BILLION = 10**9
_LEAST_BYTES = 1 << 20


def check_cpus(name: str, text: str) -> None:
    """Refuse what is no number of processors."""
    if not text:
        return
    if not re.fullmatch(_FORM, text) or text.endswith("i"):
        raise SpecError(
            f"{name} must be a number of processors, found {text!r:.60}",
            hint=f"write {name} 4, or 500m for half of one",
        )
    if read_quantity(text) == 0:
        raise SpecError(f"{name} must be more than 0", hint=f"leave {name} out for no limit")


def check_bytes(name: str, text: str) -> None:
    """Refuse what is no amount of memory or disk, and what has surely lost its unit."""
    if not text:
        return
    if not re.fullmatch(_FORM, text) or text[-1] in "num":
        raise SpecError(
            f"{name} must be an amount like 512Gi, found {text!r:.60}",
            hint="units are Ki, Mi, Gi, Ti (of 1024) and k, M, G, T (of 1000)",
        )
    if read_quantity(text) < _LEAST_BYTES * BILLION:
        raise SpecError(
            f"{name} {text} is less than a megabyte", hint=f"was {text}Gi meant? Give a unit"
        )


def read_quantity(text: str) -> int:
    """The billionths behind a quantity: whole numbers, so that 0.3 and 300m are the same."""
    match = re.fullmatch(_FORM, text)
    if not match:
        raise SpecError(f"{text!r:.60} is not a quantity", hint="write it like 4, 500m or 512Gi")
    number, suffix = match.groups()
    whole, _, part = number.partition(".")
    factor = 1024 ** _BINARY[suffix] * BILLION if suffix in _BINARY else 10 ** _POWERS[suffix]
    return int(int(f"{whole}{part}") * factor // 10 ** len(part))


def read_cpus(text: str) -> float:
    """How many processors a quantity is: 0.5 for 500m."""
    return read_quantity(text) / BILLION


def halve(text: str) -> str:
    """Half of an amount of bytes, as whole mebibytes."""
    return f"{read_quantity(text) // 2 // BILLION // (1 << 20) or 1}Mi"
