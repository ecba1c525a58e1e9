"""The mesh of a rank: attached to the workers that it was told of, once for all of its calls.

Loaded where user code asks for its mesh. Imports Monarch when it is called.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from typing import Any

from windlass import names
from windlass.errors import SpecError

# how long hosts keep the actors of a client that they do not hear any more
_ORPHAN = "10s"
_STOP_S = 5.0

_meshes: dict[tuple[str, ...], Any] = {}


class FaultHook:
    """What Monarch calls when an actor failed and nothing handled it: interrupts the client, as its own does.

    By a signal, which ends a sleep, too, and once, however many actors fail. What failed is kept: all that
    the client sees is an interrupt.
    """

    def __init__(self) -> None:
        self.failure = ""

    def __call__(self, failure: Any) -> None:
        if self.failure:
            return
        try:
            self.failure = failure.report()
        except Exception:  # noqa: BLE001 - Monarch's own; any text of it will do
            self.failure = str(failure)
        os.kill(os.getpid(), signal.SIGINT)


def attach_own() -> Any:
    """The mesh of this rank's own nodes."""
    workers = os.environ.get(names.MONARCH_WORKERS, "").split()
    if not workers:
        raise SpecError(
            "there is no Monarch mesh here",
            hint='host_mesh() is for what runs under framework="monarch" (--framework monarch); '
            "elsewhere name a mesh: host_mesh(mesh_name=...)",
        )
    return attach_to(workers)


def attach_to(workers: Sequence[str]) -> Any:
    """The mesh of these workers, in this order."""
    key = tuple(workers)
    if key not in _meshes:
        from monarch import actor
        from monarch.config import configure

        if not isinstance(actor.unhandled_fault_hook, FaultHook):
            actor.unhandled_fault_hook = FaultHook()
        actor.enable_transport(workers[0].partition("://")[0])
        configure(mesh_orphan_timeout=_ORPHAN)
        _meshes[key] = actor.attach_to_workers(ca="trust_all_connections", workers=list(workers))
    return _meshes[key]


def leave_mesh() -> None:
    """Have the hosts end what this process has there; they stay, for the next one."""
    for mesh in _meshes.values():
        with contextlib.suppress(Exception):  # whatever is gone already needs no end
            mesh.stop().get(timeout=_STOP_S)
    _meshes.clear()
