"""Callables by name: what was deployed on a compute, found again from any process.

The lead keeps the record: the callable, pickled as it travels, and how it is spread. `get` needs no more than
the name.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Mapping
from typing import Any

from windlass.client.compute.callable_work import Work
from windlass.client.compute.compute_handle import Compute
from windlass.client.compute.compute_spec import decide
from windlass.client.compute.connection import ask_at
from windlass.client.compute.find_computes import list_computes, read_owner
from windlass.client.compute.live_nodes import LiveNodes
from windlass.client.compute.owners import is_meant, join_owner, make_refusal, name_for, split_owner
from windlass.client.compute.remote import Remote
from windlass.engines.protocol import ComputeEngine, JobRef
from windlass.errors import JobNotFound, WindlassError
from windlass.near_names import did_you_mean
from windlass.plan.plan import Plan
from windlass.wire import payloads
from windlass.wire.messages.calls import ConfigureCompute


class Deployed:
    """A callable in its pickled form: ranks load it, this process need not be able to."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        raise TypeError("a deployed callable runs on its compute only")

    def __reduce__(self) -> Any:
        return pickle.loads, (self._data,)


def record(nodes: LiveNodes, work: Work, about: Mapping[str, Any]) -> None:
    """Leave with the compute what `get` needs to call it; `about` is how it is called."""
    segments = payloads.pack(work.target, name=work.name)
    target = base64.b64encode(b"".join(bytes(s) for s in segments[:1])).decode()
    nodes.ask(ConfigureCompute(record={work.name: {**about, "target": target}}))


def get(name: str, *, engine: str = "", namespace: str = "", context: str = "") -> Remote:
    """The callable that was deployed under this name, by this process or any other.

    name: its name; what another user deployed is owner/name.
    engine: where to look; empty: a cluster if there is one, else local.
    namespace: the namespace to look in; empty: that of the settings.
    context: the kubeconfig's context; empty: that of the settings.
    """
    given = {"engine": engine, "namespace": namespace, "context": context}
    where = decide({key: value for key, value in given.items() if value}, is_there=True)
    return _find(name, where.engine, context)


def _find(name: str, engine: ComputeEngine, context: str) -> Remote:
    owner, name = read_owner(engine, name)
    known: list[str] = []
    others: list[tuple[JobRef, Plan]] = []
    for ref, plan in list_computes(engine):
        if not is_meant(engine, ref, plan, owner):
            others.append((ref, plan))
            continue
        record = _ask_record(engine, ref)
        known += record
        if name in record:
            return _make(name, record[name], ref, context)
    # asked only so that the error can say whose it is
    for ref, plan in () if owner else others:
        if name in _ask_record(engine, ref):
            maker, _ = split_owner(name_for(engine, ref, plan))
            raise make_refusal(name, join_owner(maker, name), what="deployed name")
    hint = did_you_mean(name, known, "windlass deploy SCRIPT.py brings it up")
    whose = f" by {owner}" if owner else ""
    raise JobNotFound(f"nothing is deployed under the name {name!r}{whose}", hint=hint)


def _ask_record(engine: ComputeEngine, ref: JobRef) -> Mapping[str, dict[str, Any]]:
    """What is deployed on a compute; nothing where it does not answer."""
    try:
        return ask_at(engine, ref).record
    except (OSError, WindlassError):
        return {}


def _make(name: str, record: dict[str, Any], ref: JobRef, context: str) -> Remote:
    compute = Compute.at(ref, record["compute"], context=context)
    target = Deployed(base64.b64decode(record["target"]))
    return Remote.rebuild(target, name, record, compute)
