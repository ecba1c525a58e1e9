"""Computes that exist: listed through their engine, found by name, described, and ended.

`windlass compute` shows the results of `list_living` and `find_living`. `NodeDiscovery` finds live nodes that
this process can reuse. A job may wait for nodes or GPUs of idle computes. Those computes are looked up once
per wait, and only if freeing resources would help. `windlass.client.compute.nodes.compute_owners` decides who
owns a compute.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from windlass import records
from windlass.client.compute.nodes.compute_connection import ask_at
from windlass.client.compute.nodes.compute_owners import (
    is_meant,
    is_own,
    join_owner,
    make_refusal,
    name_for,
    name_user,
    split_owner,
)
from windlass.client.compute.nodes.compute_spec import (
    ResolvedCompute,
    decide,
    describe_change,
    forget_changing,
)
from windlass.client.compute.nodes.engine_choice import choose_where
from windlass.client.jobs.job_ids import is_made_from
from windlass.client.terminal import print_notice
from windlass.engines.engine_table import make_compute_engine, make_engine
from windlass.engines.protocol import ComputeEngine, JobRef
from windlass.errors import JobNotFound, KeysReplaced, SpecError, WindlassError, count_noun
from windlass.kube.diagnosis.blocker import CONDITION, needs_room
from windlass.kube.objects.naming import object_name
from windlass.near_names import did_you_mean
from windlass.plan.plan import Plan
from windlass.settings import Settings, read_settings_here
from windlass.spec.work import Calls
from windlass.trusted import make_own
from windlass.waiting import wait_until
from windlass.wire.states import NodeState
from windlass.wire.status import Condition, JobStatus

_MAX_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleCompute:
    """Idle compute that belongs to this user."""

    name: str
    num_nodes: int
    gpus: int = 0  # GPUs of all its nodes

    def __str__(self) -> str:
        count, thing = (self.gpus, "GPU") if self.gpus else (self.num_nodes, "node")
        is_held = "is" if count == 1 else "are"
        return f"{count_noun(count, thing)} {is_held} held by your idle compute {self.name}"


def find_holders(engine: ComputeEngine, ref: JobRef) -> Iterator[IdleCompute]:
    """Yield this user's idle computes that hold resources the job `ref` could use."""
    # imported here, because it loads all messages of calls, which would slow down `windlass run`
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
    """Idle computes with resources that a job waits for. They are looked up at most once per job."""

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
    """Return a function that maps a compute's name to the shell command that ends it.

    The command includes the namespace if a flag set it.
    """
    where = f" --namespace {settings.namespace}" if _names_namespace(settings) else ""
    return lambda name: f"`windlass compute rm {name}{where}`"


def remove_by_call(settings: Settings) -> Callable[[str], str]:
    """Return a function that maps a compute's name to the Python call that ends it.

    The call includes the namespace if a flag set it.
    """
    where = f', namespace="{settings.namespace}"' if _names_namespace(settings) else ""
    return lambda name: f'windlass.Compute(name="{name}"{where}).teardown()'


def _names_namespace(settings: Settings) -> bool:
    return settings.origin("namespace").startswith("flag")


END_S = 120.0
_HERE = "local"


def list_computes(engine: ComputeEngine, name: str = "") -> Iterator[tuple[JobRef, Plan]]:
    """Yield the computes that may be live, with their plans. Computes created on this machine come first.

    With `name`, yield only computes of that name. Opens no connection to them.
    """
    for ref in sorted(engine.computes(), key=lambda ref: not engine.is_made_here(ref)):
        if name and not is_made_from(ref.job_id, name):
            continue
        try:
            plan = engine.plan(ref)
        except WindlassError as error:  # an unreadable compute cannot be the one
            if name and isinstance(error, KeysReplaced):
                raise  # another user tampered with this user's compute
            continue
        if isinstance(plan.work, Calls):
            yield ref, plan


def is_live(engine: ComputeEngine, ref: JobRef) -> bool:
    """Return whether a compute has not ended. One without a readable status counts as ended."""
    try:
        return not engine.status(ref).phase.is_final
    except KeysReplaced:
        raise
    except WindlassError:
        return False


def find_computes(wanted: ResolvedCompute) -> list[tuple[JobRef, Plan]]:
    """Return the live computes of all users."""
    engine = wanted.engine
    return [(ref, plan) for ref, plan in list_computes(engine) if is_live(engine, ref)]


def find_meant(wanted: ResolvedCompute, text: str) -> list[tuple[JobRef, Plan]]:
    """Return the live computes that a name or owner/name means.

    Raises an error if only other users have computes of that name.
    """
    engine = wanted.engine
    owner, name = read_compute_owner(engine, text)
    named = list(list_computes(engine, name))
    meant = [one for one in named if is_meant(engine, *one, owner)]
    living = [one for one in meant if is_live(engine, one[0])]
    others = [name_for(engine, *one) for one in named if one not in meant]
    if owner and not living:
        hint = (
            f"there is {others[0]}" if others else "run `windlass compute ls` to list the live ones"
        )
        raise JobNotFound(f"{owner} has no compute {name} here", hint=hint)
    if others and not living:
        raise make_refusal(name, others[0])
    return living


def read_compute_owner(engine: ComputeEngine, text: str) -> tuple[str, str]:
    """Split a request into owner and name. The owner is empty if it is this user."""
    owner, name = split_owner(text)
    return ("" if owner in ("", name_user()) or owner == engine.identity() else owner), name


def end_job(wanted: ResolvedCompute, ref: JobRef) -> None:
    """End a compute and wait for its removal."""
    engine = wanted.engine
    engine.cancel(ref, now=True, why="taken down")
    wait_until(lambda: engine.status(ref).phase.is_final, timeout_s=END_S, every_s=0.02)


class NodeDiscovery:
    """Search for live nodes by a compute's name, to reuse or replace them."""

    def __init__(self, wanted: ResolvedCompute, qualified_name: str) -> None:
        self._wanted = wanted
        self._qualified_name = qualified_name
        self._name = split_owner(qualified_name)[1]

    @contextlib.contextmanager
    def lock_name(self) -> Iterator[None]:
        """Lock the name, so that one process starts the compute and later ones find its nodes."""
        home = Path(str(self._wanted.settings.value("home"))).expanduser()
        make_own(home / "locks", below=home)
        with (home / "locks" / object_name(self._name, 60)).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def list_refs(self) -> list[JobRef]:
        """Return the jobs of the live computes with this name."""
        return [ref for ref, _ in find_meant(self._wanted, self._qualified_name)]

    def find(self) -> tuple[JobRef, bool] | None:
        """Return usable nodes and whether they are this user's, or None. Ends nodes with another spec."""
        for ref, plan in find_meant(self._wanted, self._qualified_name):
            if not is_own(self._wanted.engine, ref, plan):
                return ref, False
            if isinstance(plan.work, Calls) and plan.work.fixed == self._wanted.digest:
                return ref, True
            self._replace(ref, plan)
        return None

    def _replace(self, ref: JobRef, plan: Plan) -> None:
        """End nodes that no longer match the spec. Raise if they are busy."""
        there = {} if plan.pod is None else forget_changing(records.to_json(plan.pod))
        there |= plan.work.about if isinstance(plan.work, Calls) else {}
        change = describe_change(there, self._wanted.fixed)
        if self._is_at_work(ref):
            raise SpecError(
                f"{self._name} has unfinished calls, but its nodes must be replaced ({change})",
                hint=f"wait for its calls, run `windlass compute rm {self._name}`, or use another name=",
            )
        print_notice(
            f"{self._name}: replacing its nodes, because some settings cannot change in place ({change})"
        )
        end_job(self._wanted, ref)

    def _is_at_work(self, ref: JobRef) -> bool:
        """Return whether the nodes have unfinished calls. Assume that silent nodes have none."""
        try:
            calls = ask_at(self._wanted.engine, ref).calls
        except (OSError, WindlassError):
            return False
        return not all(call.state.is_final for call in calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCompute:
    """Snapshot of a compute. Values that only its lead knows are None while it does not answer."""

    name: str
    ref: JobRef
    created_at_s: float
    num_nodes: int
    owner: str = ""  # empty: this user
    num_here: int | None = None
    state: str = "starting"  # starting, idle, at work, silent
    why: str = ""  # the reason why the lead does not answer
    num_calls: int | None = None
    num_waiting: int = 0
    idle_s: float | None = None
    ttl_s: float | None = None
    deployed: tuple[str, ...] = ()
    calls: tuple[Mapping[str, str], ...] = ()  # the latest calls: id, name, state

    @property
    def qualified_name(self) -> str:
        """Name to use in requests: `owner/name` if another user owns the compute."""
        return join_owner(self.owner, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCompute:
    """Compute and the place where it was found."""

    where: ResolvedCompute
    ref: JobRef
    name: str = ""
    owner: str = ""  # empty: this user


def search_targets(flags: Mapping[str, Any]) -> list[ResolvedCompute]:
    """Return the places to search: the chosen engine, else this machine and the default engine."""
    settings = read_settings_here(flags)
    return [decide({**flags, "engine": name}, is_there=True) for name in _engines(settings)]


def _engines(settings: Settings) -> list[str]:
    chosen = choose_where("", settings).engine
    is_chosen = settings.origin("engine") != "default"
    return [chosen] if is_chosen else list(dict.fromkeys((_HERE, chosen)))


def list_living(where: ResolvedCompute) -> list[LiveCompute]:
    """Return all computes of one place, newest first."""
    return [look(_make_found(where, ref, plan)) for ref, plan in find_computes(where)]


def _make_found(where: ResolvedCompute, ref: JobRef, plan: Plan) -> FoundCompute:
    owner, name = split_owner(name_for(where.engine, ref, plan))
    return FoundCompute(where=where, ref=ref, name=name, owner=owner)


def look(compute: FoundCompute) -> LiveCompute:
    """Ask a compute for its current state."""
    where, ref = compute.where, compute.ref
    status = where.engine.status(ref)
    about: dict[str, Any] = {
        "name": status.name,
        "owner": compute.owner,
        "ref": ref,
        "created_at_s": status.created_at_s,
        "num_nodes": status.num_nodes,
    }
    try:
        info = ask_at(where.engine, ref)
    except (OSError, WindlassError) as error:
        return LiveCompute(**about, **_explain(status, error))
    active = [call for call in info.calls if not call.state.is_final]
    about |= {
        "num_nodes": info.nodes,
        "num_here": len(info.here),
        "state": "at work" if active else "idle",
        "num_waiting": max(0, len(active) - 1),
        "deployed": tuple(info.record),
        "calls": tuple(records.to_json(call) for call in info.calls),
        "num_calls": info.num_calls,
        "idle_s": info.idle_s,
        "ttl_s": info.ttl_s,
    }
    return LiveCompute(**about)


def _explain(status: JobStatus, error: Exception) -> dict[str, Any]:
    """Return the fields of a compute with an unreachable lead: it is still starting, or silent."""
    blocked = [c.text for c in status.conditions if c.type == CONDITION]
    if blocked or any(node.state == NodeState.PENDING for node in status.nodes[:1]):
        return {"state": "starting", "why": "; ".join(blocked)}
    return {"state": "silent", "why": str(error)}


def find_living(text: str, wheres: Sequence[ResolvedCompute]) -> FoundCompute:
    """Return the compute with this name, owner/name, id or reference."""
    meant: dict[str, FoundCompute] = {}
    others: dict[str, FoundCompute] = {}
    for where in wheres:
        owner, name = read_compute_owner(where.engine, text)
        for ref, plan in find_computes(where):
            one = _make_found(where, ref, plan)
            if text in (ref.job_id, str(ref)):
                return one
            is_one = is_meant(where.engine, ref, plan, owner)
            (meant if is_one else others).setdefault(str(ref), one)
    named = [one for one in meant.values() if one.name == name]
    if len(named) == 1:
        return named[0]
    if named:
        shown = ", ".join(str(one.ref) for one in named)
        raise SpecError(
            f"{text!r} is ambiguous: it matches {shown}", hint="use one of these references"
        )
    for one in others.values():
        if one.name == text:
            raise make_refusal(text, join_owner(one.owner, one.name))
    known = [compute.name for compute in meant.values()]
    hint = did_you_mean(name, known, "run `windlass compute ls` to list them")
    raise JobNotFound(f"compute {text!r:.80} not found", hint=hint)
