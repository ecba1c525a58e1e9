"""Callables by name: what was deployed on a compute, found again from any process.

The lead keeps the record: the callable, pickled as it travels, and how it is spread. `get` needs no more than
the name.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from windlass.agent import parcels
from windlass.client.warm.callable_work import Work
from windlass.client.warm.compute import Compute
from windlass.client.warm.computes import find_computes
from windlass.client.warm.nodes import LiveNodes
from windlass.client.warm.remote import Remote
from windlass.client.warm.spec import decide
from windlass.client.warm.talk import ask_at
from windlass.engines.protocol import JobRef
from windlass.errors import JobNotFound, WindlassError


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
    segments = parcels.pack(work.target, name=work.name)
    target = base64.b64encode(b"".join(bytes(s) for s in segments[:1])).decode()
    nodes.ask({"type": "configure", "record": {work.name: {**about, "target": target}}})


def get(name: str, **where: Any) -> Remote:
    """The callable that was deployed under this name; keywords say where to look: engine, namespace."""
    wanted = decide(where, is_there=True)
    known: list[str] = []
    for ref in find_computes(wanted):
        try:
            info = ask_at(wanted.engine, ref)
        except (OSError, WindlassError):
            continue
        known += info["record"]
        if name in info["record"]:
            return _make(name, info["record"][name], ref, where)
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else "windlass deploy SCRIPT.py brings it up"
    raise JobNotFound(f"nothing is deployed under the name {name!r}", hint=hint)


def _make(name: str, found: dict[str, Any], ref: JobRef, where: dict[str, Any]) -> Remote:
    compute = Compute.at(ref, found["compute"], **where)
    target = Deployed(base64.b64decode(found["target"]))
    return Remote.rebuild(target, name, found, compute)
