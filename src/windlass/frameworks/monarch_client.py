"""Host mesh of a rank, attached once to the workers in its environment and reused by all of its calls.

`windlass.monarch` imports this module when user code requests a mesh. It imports Monarch only when called.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from typing import Any

from windlass import names
from windlass.errors import SpecError

# how long hosts keep the actors of a client that has stopped responding
_ORPHAN = "10s"
_STOP_S = 5.0

_meshes: dict[tuple[str, ...], Any] = {}


class FaultHook:
    """Hook for unhandled actor failures, which interrupts the client as Monarch's own hook does.

    It sends one signal, which also interrupts a sleep, however many actors fail. It keeps the failure report,
    because the client itself sees only an interrupt.
    """

    def __init__(self) -> None:
        self.failure = ""

    def __call__(self, failure: Any) -> None:
        if self.failure:
            return
        try:
            self.failure = failure.report()
        except Exception:  # noqa: BLE001 - Monarch may raise anything
            self.failure = str(failure)
        os.kill(os.getpid(), signal.SIGINT)


def attach_own() -> Any:
    """Return the mesh of this rank's own nodes."""
    workers = os.environ.get(names.MONARCH_WORKERS, "").split()
    if not workers:
        raise SpecError(
            "no Monarch mesh is available here",
            hint='call host_mesh() in work that runs with framework="monarch" (--framework monarch); '
            "elsewhere, pass the name of a mesh: host_mesh(mesh_name=...)",
        )
    return attach_to(workers)


def attach_to(workers: Sequence[str]) -> Any:
    """Return the mesh of these workers, in this order."""
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
    """End this process's actors on the hosts. The hosts stay up for the next process."""
    for mesh in _meshes.values():
        with contextlib.suppress(Exception):  # the host may have ended already
            mesh.stop().get(timeout=_STOP_S)
    _meshes.clear()
