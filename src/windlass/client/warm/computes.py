"""Computes as an engine knows them, as jobs: found, and ended. What they say is `client.warm.talk`."""

from __future__ import annotations

import contextlib

from windlass.client.ids import is_made_from
from windlass.client.warm.spec import Wanted
from windlass.engines.protocol import JobRef
from windlass.errors import WindlassError
from windlass.spec.work import Calls
from windlass.waiting import wait_until

_END_S = 120.0


def find_computes(wanted: Wanted, name: str = "") -> list[JobRef]:
    """The computes that live, or those of one name."""
    found = []
    for ref in wanted.engine.computes():
        if name and not is_made_from(ref.job_id, name):
            continue
        with contextlib.suppress(WindlassError):
            is_compute = isinstance(wanted.engine.plan(ref).work, Calls)
            if is_compute and not wanted.engine.status(ref).phase.is_final:
                found.append(ref)
    return found


def end_job(wanted: Wanted, ref: JobRef) -> None:
    """End a compute and wait until it is gone."""
    engine = wanted.engine
    engine.cancel(ref, now=True, why="taken down")
    wait_until(lambda: engine.status(ref).phase.is_final, timeout_s=_END_S, every_s=0.02)
