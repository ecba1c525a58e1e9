"""Distribution of a callable over nodes: the framework, the number of nodes, and the ranks on each.

`workers="2:4"` means four nodes, or fewer if four are not available, but never fewer than two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from windlass.client.keywords import ALSO
from windlass.errors import SpecError
from windlass.frameworks.framework import choose_framework, load_framework
from windlass.near_names import did_you_mean
from windlass.settings import read_settings_here
from windlass.spec.node_resources import make_size, read_texts
from windlass.spec.pod_spec import PodSize

_RANGE = re.compile(r"\s*(\d{1,6})\s*:\s*(\d{1,6})\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Number of nodes, and number of ranks on each (default: one per GPU, or 1)."""

    framework: str = "pytorch"
    workers: int = 1
    procs: int | None = None
    min_workers: int = 0  # a call may start with this many nodes (0: all)
    # resources of workers next to a head (empty: the same as the head's)
    worker_node_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def worker_size(self) -> PodSize | None:
        """Size of the workers' pods, or None if it is the same as the head's."""
        if not self.worker_node_options:
            return None
        texts = read_texts(self.worker_node_options, "worker_node_options:")
        return PodSize(
            cpus=texts.get("cpus", ""),
            memory=texts.get("memory", ""),
            gpus=int(texts.get("gpus") or 0),
        )


def make_spread(
    framework: str = "pytorch",
    *,
    workers: int | str = 1,
    procs: int | None = None,
    worker_node_options: Mapping[str, Any] | None = None,
    **more: Any,
) -> Distribution:
    """Check the keywords of `.distribute`. Other tools' names for them are accepted too."""
    for name, value in more.items():
        if ALSO.get(name) == "workers":
            workers = value
        elif ALSO.get(name) == "procs":
            procs = value
        else:
            known = ("framework", "workers", "procs", "worker_node_options")
            is_of_fn = name == "keep"
            hint = 'use fn(f, keep="process")' if is_of_fn else did_you_mean(name, known, show=repr)
            raise SpecError(f"distribute has no keyword {name!r}", hint=hint)
    cluster = load_framework(framework).cluster
    if worker_node_options and cluster is None:
        raise SpecError(
            f"worker_node_options have no effect with framework {framework}, which has no head",
            hint='use Compute(gpus=..., cpus=..., memory=...), or framework="ray"',
        )
    options = _read_options(worker_node_options or {})
    fewest, most = _read_workers(workers)
    extra = 0 if cluster is None else cluster.extra_nodes
    if procs is not None and not _is_count(procs):
        raise SpecError(
            f"procs must be at least 1, not {procs!r}", hint="use a number such as procs=2"
        )
    return Distribution(
        framework=framework,
        workers=most + extra,
        procs=procs,
        min_workers=fewest and fewest + extra,
        worker_node_options=options,
    )


def _read_options(given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise SpecError(
            f"worker_node_options must be a dict, not {given!r:.60}",
            hint='pass a dict such as {"gpus": 1, "cpus": "4", "memory": "16Gi"}',
        )
    make_size(given, "worker_node_options:")
    return dict(given)


def default_framework() -> str:
    """Return the framework of the settings, for a `.distribute` without one."""
    settings = read_settings_here({})
    return choose_framework(settings.framework, is_command=False).name


def _read_workers(given: Any) -> tuple[int, int]:
    """Return the minimum (0: all) and maximum number of nodes."""
    if _is_count(given):
        return 0, given
    match = _RANGE.fullmatch(given) if isinstance(given, str) else None
    fewest, most = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= fewest <= most:
        hint = 'workers=2, or workers="2:4" for at least 2'
        raise SpecError(f"workers must be at least 1, or MIN:MAX, not {given!r:.60}", hint=hint)
    return (fewest if fewest < most else 0), most


def _is_count(given: Any) -> bool:
    return type(given) is int and given >= 1
