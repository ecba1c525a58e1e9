"""What a framework that counts resources itself is told that nodes have: node 0, and the others.

Pure. Made from settings and keywords by the client; read by frameworks whose nodes form a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from windlass.errors import SpecError
from windlass.near_names import did_you_mean
from windlass.spec.quantity import BILLION, check_bytes, check_cpus, read_cpus, read_quantity

_OPTIONS = ("cpus", "gpus", "memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSize:
    """One node's; 0: what is there, of which nodes on one machine have a share each."""

    cpus: float = 0.0
    gpus: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSizes:
    """Those of all nodes, and what else the framework's library must know of the client."""

    first: NodeSize = NodeSize()
    others: NodeSize = NodeSize()
    pretends_gpus: bool = False  # GPUs are counted that need not be there
    version: str = ""  # of that library at the client; empty: it has none
    cwd: str = ""  # where its processes are, if that is the project's; empty: where the job is
    paths: tuple[str, ...] = ()  # and their import paths


def make_size(given: Mapping[str, Any], where: str) -> NodeSize:
    """One node's size from cpus, gpus and memory, which may be texts; what is left out is 0."""
    texts = read_texts(given, where)
    cpus, memory, gpus = (texts.get(name, "") for name in ("cpus", "memory", "gpus"))
    return NodeSize(
        cpus=read_cpus(cpus) if cpus else 0.0,
        gpus=int(gpus or 0),
        memory_bytes=read_quantity(memory) // BILLION if memory else 0,
    )


def read_texts(given: Mapping[str, Any], where: str) -> dict[str, str]:
    """What was asked for, checked, each as a text."""
    for name in given:
        if name not in _OPTIONS:
            hint = did_you_mean(str(name), _OPTIONS, show=repr)
            raise SpecError(f"{where} has no {name!r}", hint=hint)
    texts = {name: _read_text(where, name, value) for name, value in given.items()}
    cpus, memory, gpus = (texts.get(name, "") for name in ("cpus", "memory", "gpus"))
    check_cpus(f"{where} cpus", cpus)
    check_bytes(f"{where} memory", memory)
    if gpus and not gpus.isdecimal():
        raise SpecError(f"{where} gpus must be a whole number, not {gpus!r:.40}", hint="gpus=1")
    return texts


def _read_text(where: str, name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise SpecError(
            f"{where} {name} must be a number or a text, not {value!r:.40}", hint='"4" or "16Gi"'
        )
    return f"{value:g}" if isinstance(value, float) else str(value).strip()
