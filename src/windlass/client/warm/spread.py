"""How a callable is spread over nodes: the framework, how many nodes, how many ranks on each. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from windlass.errors import SpecError

FRAMEWORKS = ("pytorch", "spmd", "command")
_LATER = ("ray", "monarch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """So many nodes, so many ranks on each (None: one a GPU, else one)."""

    framework: str = "pytorch"
    workers: int = 1
    procs: int | None = None


def make_spread(
    framework: str = "pytorch", *, workers: int = 1, procs: int | None = None, **more: Any
) -> Spread:
    """What `.distribute` was told, checked; the words of others mean the same."""
    also = {"num_workers": "workers", "replicas": "workers", "nodes": "workers"}
    also |= {"num_proc": "procs", "procs_per_worker": "procs", "nproc_per_node": "procs"}
    for name, value in more.items():
        if also.get(name) == "workers":
            workers = value
        elif also.get(name) == "procs":
            procs = value
        else:
            near = get_close_matches(name, ("framework", "workers", "procs"), n=1)
            hint = f"did you mean {near[0]!r}?" if near else "there are framework, workers, procs"
            raise SpecError(f"distribute has no keyword {name!r}", hint=hint)
    if framework in _LATER:
        raise SpecError(
            f"the framework {framework!r} is not there yet",
            hint="pytorch and spmd run any function on all ranks; command runs a program",
        )
    if framework not in FRAMEWORKS:
        near = get_close_matches(str(framework), (*FRAMEWORKS, *_LATER), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(FRAMEWORKS)}"
        raise SpecError(f"there is no framework {framework!r}", hint=hint)
    for name, count in (("workers", workers), ("procs", 1 if procs is None else procs)):
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise SpecError(f"{name} must be 1 or more, not {count!r}", hint=f"{name}=2")
    return Spread(framework=framework, workers=workers, procs=procs)
