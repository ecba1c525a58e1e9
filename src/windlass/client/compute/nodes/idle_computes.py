"""Idle computes of the user that hold the nodes or GPUs that a job waits for.

They are looked up once per wait, and only if freeing resources would help. This module ends no compute.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from windlass.client.compute.nodes.compute_owners import name_user
from windlass.engines.engine_table import make_compute_engine, make_engine
from windlass.engines.protocol import ComputeEngine, JobRef
from windlass.errors import WindlassError
from windlass.kube.diagnosis.blocker import needs_room
from windlass.plan.plan import Plan
from windlass.settings import Settings
from windlass.spec.work import Calls
from windlass.wire.status import Condition, JobStatus

_MAX_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleCompute:
    """Idle compute that belongs to this user."""

    name: str
    num_nodes: int
    gpus: int = 0  # of all its nodes

    def __str__(self) -> str:
        count, thing = (self.gpus, "GPU") if self.gpus else (self.num_nodes, "node")
        is_held = "is" if count == 1 else "are"
        return f"{count} {thing}{'s' * (count > 1)} {is_held} held by your idle compute {self.name}"


def find_holders(engine: ComputeEngine, ref: JobRef) -> Iterator[IdleCompute]:
    """Yield this user's idle computes that hold resources the job `ref` could use."""
    # imported here: it loads all messages of calls, which would slow down running jobs
    from windlass.client.compute.nodes.compute_connection import ask_at

    resource = _read_gpus(engine.plan(ref))[0]
    for other in engine.computes():
        if other.job_id == ref.job_id:
            continue
        # a compute that does not answer is not idle
        with contextlib.suppress(OSError, WindlassError):
            plan = engine.plan(other)
            held, per_node = _read_gpus(plan)
            if not _is_own(plan) or (resource and held != resource):
                continue
            info = ask_at(engine, other)
            if all(call.state.is_final for call in info.calls):
                num_nodes = len(info.here)
                yield IdleCompute(name=plan.name, num_nodes=num_nodes, gpus=num_nodes * per_node)


def _read_gpus(plan: Plan) -> tuple[str, int]:
    """Return the resource name of the pods' GPUs and the number per pod, or an empty name."""
    pod = plan.pod
    return (pod.gpu_resource, pod.gpus) if pod is not None and pod.gpus else ("", 0)


def _is_own(plan: Plan) -> bool:
    return isinstance(plan.work, Calls) and plan.work.user == name_user()


class IdleComputes:
    """Idle computes that hold what a job waits for. Each job's are looked up at most once."""

    def __init__(self, engine: ComputeEngine, remove: Callable[[str], str]) -> None:
        self._engine = engine
        self._remove = remove  # returns the command or call that ends a compute of that name
        self._found: dict[JobRef, tuple[IdleCompute, ...]] = {}

    def name_in(self, status: JobStatus, ref: JobRef) -> JobStatus:
        """Return the status with the holders named in the conditions that lack resources."""
        if not any(map(needs_room, status.conditions)):
            return status
        if ref not in self._found:
            self._found[ref] = ()
            with contextlib.suppress(OSError, WindlassError):
                self._found[ref] = tuple(find_holders(self._engine, ref))
        named = (self._name(c, ref) if needs_room(c) else c for c in status.conditions)
        return replace(status, conditions=tuple(named))

    def _name(self, condition: Condition, ref: JobRef) -> Condition:
        message, hint = self.add_to(condition.message, condition.hint, ref)
        return replace(condition, message=message, hint=hint)

    def add_to(self, message: str, hint: str, ref: JobRef) -> tuple[str, str]:
        """Return the message and hint, extended by the idle computes found for the job, if any."""
        shown = self._found.get(ref, ())[:_MAX_NAMED]
        if not shown:
            return message, hint
        held = "; ".join(map(str, shown))
        remedy = " or ".join(self._remove(holder.name) for holder in shown)
        return f"{message}; {held}", f"{remedy}; or {hint}" if hint else remedy


def explain_by(ref: JobRef, settings: Settings) -> Callable[[JobStatus], JobStatus]:
    """Return a function that names idle computes in a job's status, for the command line.

    It returns the status unchanged if the engine has no computes.
    """
    if "computes" not in make_engine(ref.engine, settings).can:
        return lambda status: status
    holders = IdleComputes(make_compute_engine(ref.engine, settings), remove_by_command(settings))
    return lambda status: holders.name_in(status, ref)


def remove_by_command(settings: Settings) -> Callable[[str], str]:
    """Return how to end a compute in a shell, with the namespace if a flag set it here."""
    where = f" --namespace {settings.namespace}" if _names_namespace(settings) else ""
    return lambda name: f"windlass compute rm {name}{where}"


def remove_by_call(settings: Settings) -> Callable[[str], str]:
    """Return how to end a compute in Python, with the namespace if a flag set it here."""
    where = f', namespace="{settings.namespace}"' if _names_namespace(settings) else ""
    return lambda name: f'windlass.Compute(name="{name}"{where}).teardown()'


def _names_namespace(settings: Settings) -> bool:
    return settings.origin("namespace").startswith("flag")
