"""Resources of nodes: Kubernetes quantities, and node sizes for frameworks that count resources.

Quantities such as "4", "500m" and "512Gi" stay text, the form that the API server accepts. They are converted
to numbers only for comparisons. Clients, `kube` and frameworks with clusters use this module. It performs no
I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from windlass.errors import SpecError
from windlass.near_names import did_you_mean

_FORM = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(Ki|Mi|Gi|Ti|Pi|Ei|[num]|[kMGTPE]?)"
_POWERS = {"n": 0, "u": 3, "m": 6, "": 9, "k": 12, "M": 15, "G": 18, "T": 21, "P": 24, "E": 27}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
BILLION = 10**9
_LEAST_BYTES = 1 << 20
_OPTIONS = ("cpus", "gpus", "memory")


def check_cpus(name: str, text: str) -> None:
    """Raise SpecError if a text is not a number of processors."""
    if not text:
        return
    if not re.fullmatch(_FORM, text) or text.endswith("i"):
        raise SpecError(
            f"{name} must be a number of CPUs, not {text!r:.60}",
            hint=f"use {name} 4, or 500m for half a CPU",
        )
    if read_quantity(text) == 0:
        raise SpecError(f"{name} must be more than 0", hint=f"omit {name} for no limit")


def check_bytes(name: str, text: str) -> None:
    """Raise SpecError if `text` is not an amount of memory or disk, or obviously lacks a unit."""
    if not text:
        return
    if not re.fullmatch(_FORM, text) or text[-1] in "num":
        raise SpecError(
            f"{name} must be an amount such as 512Gi, not {text!r:.60}",
            hint="units are Ki, Mi, Gi, Ti (of 1024) and k, M, G, T (of 1000)",
        )
    if read_quantity(text) < _LEAST_BYTES * BILLION:
        raise SpecError(f"{name} {text} is less than 1 MiB", hint=f"add a unit, as in {text}Gi")


def read_quantity(text: str) -> int:
    """Return a quantity as a whole number of billionths, so that 0.3 and 300m are equal."""
    match = re.fullmatch(_FORM, text)
    if not match:
        raise SpecError(
            f"{text!r:.60} is not a valid quantity", hint="use a value such as 4, 500m or 512Gi"
        )
    number, suffix = match.groups()
    whole, _, part = number.partition(".")
    factor = 1024 ** _BINARY[suffix] * BILLION if suffix in _BINARY else 10 ** _POWERS[suffix]
    return int(int(f"{whole}{part}") * factor // 10 ** len(part))


def read_cpus(text: str) -> float:
    """Return the number of processors in a quantity, such as 0.5 for 500m."""
    return read_quantity(text) / BILLION


def halve(text: str) -> str:
    """Return half of an amount of bytes, in whole mebibytes."""
    return f"{read_quantity(text) // 2 // BILLION // (1 << 20) or 1}Mi"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSize:
    """Size of one node. 0 means everything the machine has, shared among its nodes."""

    cpus: float = 0.0
    gpus: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSizes:
    """Sizes of all nodes, and other facts about the client that the framework's library needs."""

    first: NodeSize = NodeSize()
    others: NodeSize = NodeSize()
    pretends_gpus: bool = False  # GPUs are counted although they may not exist
    version: str = ""  # that library's version on the client, or empty if not installed
    cwd: str = ""  # working directory of its processes, or empty for the job's
    paths: tuple[str, ...] = ()  # import paths of its processes


def make_size(given: Mapping[str, Any], where: str) -> NodeSize:
    """Return a node's size from cpus, gpus and memory, which may be texts (default: 0)."""
    texts = read_texts(given, where)
    cpus, memory, gpus = (texts.get(name, "") for name in ("cpus", "memory", "gpus"))
    return NodeSize(
        cpus=read_cpus(cpus) if cpus else 0.0,
        gpus=int(gpus or 0),
        memory_bytes=read_quantity(memory) // BILLION if memory else 0,
    )


def read_texts(given: Mapping[str, Any], where: str) -> dict[str, str]:
    """Return the requested resources as texts. Raise SpecError if one is invalid."""
    for name in given:
        if name not in _OPTIONS:
            hint = did_you_mean(str(name), _OPTIONS, show=repr)
            raise SpecError(f"{where} has no {name!r}", hint=hint)
    texts = {name: _read_text(where, name, value) for name, value in given.items()}
    cpus, memory, gpus = (texts.get(name, "") for name in ("cpus", "memory", "gpus"))
    check_cpus(f"{where} cpus", cpus)
    check_bytes(f"{where} memory", memory)
    if gpus and not gpus.isdecimal():
        raise SpecError(f"{where} gpus must be a whole number, not {gpus!r:.40}", hint="use gpus=1")
    return texts


def _read_text(where: str, name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise SpecError(
            f"{where} {name} must be a number or a string, not {value!r:.40}",
            hint='use a value such as "4" or "16Gi"',
        )
    return f"{value:g}" if isinstance(value, float) else str(value).strip()
