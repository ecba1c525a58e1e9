"""JobSpec: a user's request, checked but not yet planned.

`client.jobs.run.make_spec` creates it, and `plan.make_plan` reads it. It contains no job ids, ports, job
paths or engine objects.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from windlass import names
from windlass.errors import SpecError
from windlass.spec.node_resources import NodeSizes
from windlass.spec.pod_spec import PodSpec
from windlass.spec.work import Work

START_METHODS = ("fork", "spawn")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One job: its work, its size and its limits."""

    work: Work
    name: str = ""
    engine: str = "local"
    framework: str = ""  # empty for the default framework of the work
    nodes: int = 1
    min_nodes: int = 0  # fewest nodes that an attempt may start with, or 0 for all
    procs: int = 1
    only_first: bool = False  # only node 0 has ranks, and the other nodes serve them
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    paths: tuple[str, ...] = ()  # import paths of the client that ranks also need
    python: str = ""
    start: str = "fork"
    preload: tuple[str, ...] = ()
    restarts: int = 0
    node_restarts: int = 3  # number of lost nodes to tolerate, if the engine replaces them
    timeout_s: float | None = None
    grace_s: float = 10.0
    peer_wait_s: float = 60.0  # how long a finished rank waits for the others
    lease_s: float | None = None  # default: the engine's
    join_timeout_s: float | None = None  # default: the engine's
    detach: bool = False
    pod: PodSpec | None = None  # if nodes are pods
    sizes: NodeSizes | None = None  # if the framework counts resources itself

    def __post_init__(self) -> None:
        for count in ("nodes", "procs"):
            if getattr(self, count) < 1:
                raise SpecError(
                    f"--{count} must be at least 1, not {getattr(self, count)}",
                    hint=f"omit --{count} for 1",
                )
        if not 0 <= self.min_nodes <= self.nodes:
            raise SpecError(
                f"--nodes {self.min_nodes}:{self.nodes}: the minimum must not exceed the maximum",
                hint="use --nodes MIN:MAX",
            )
        for count in ("restarts", "node_restarts"):
            if getattr(self, count) < 0:
                flag = count.replace("_", "-")
                raise SpecError(f"--{flag} must be at least 0, not {getattr(self, count)}")
        _check_times(self)
        _check_choices(self)


def _check_times(spec: JobSpec) -> None:
    if spec.timeout_s is not None and not spec.timeout_s > 0:
        raise SpecError(
            f"--timeout must be more than 0, not {spec.timeout_s:g}",
            hint="omit it for no limit",
        )
    for name in ("grace_s", "peer_wait_s", "lease_s", "join_timeout_s"):
        value = getattr(spec, name)
        if value is not None and not value >= 0:
            raise SpecError(f"{name} must be at least 0, not {value}")


def _check_choices(spec: JobSpec) -> None:
    if spec.start not in START_METHODS:
        raise SpecError(
            f"--start must be one of {', '.join(START_METHODS)}, not {spec.start!r}",
            hint="fork is fast, and spawn is for libraries that do not support fork",
        )
    for key, value in spec.env.items():
        if key in names.SET_PER_RANK:
            raise SpecError(
                f"{key} is set by Windlass for each rank, so --env cannot set it",
                hint="use --nodes and --procs to set the number of ranks",
            )
        if not _ENV_NAME.match(key):
            raise SpecError(
                f"invalid environment variable name {key!r}",
                hint="use --env NAME=VALUE",
            )
        if "\0" in value:
            raise SpecError(
                f"the value of {key} contains a NUL character, which environment variables cannot have"
            )
