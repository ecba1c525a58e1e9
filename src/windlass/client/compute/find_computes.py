"""Computes as an engine knows them, as jobs: found, and ended. What they say is `client.compute.connection`.

Whose a compute is, and so whether a name means it, is `client.compute.owners`.
"""

from __future__ import annotations

from collections.abc import Iterator

from windlass.client.compute.compute_spec import Wanted
from windlass.client.compute.owners import is_meant, make_refusal, name_for, split_owner
from windlass.client.jobs.job_ids import is_made_from
from windlass.client.user import name_user
from windlass.engines.protocol import ComputeEngine, JobRef
from windlass.errors import JobNotFound, KeysReplaced, WindlassError
from windlass.plan.plan import Plan
from windlass.spec.work import Calls
from windlass.waiting import wait_until

_END_S = 120.0


def list_computes(engine: ComputeEngine, name: str = "") -> Iterator[tuple[JobRef, Plan]]:
    """All that may be computes that live, or those of a name, and their plans, those made here first.

    Nobody is dialled.
    """
    for ref in sorted(engine.computes(), key=lambda ref: not engine.is_made_here(ref)):
        if name and not is_made_from(ref.job_id, name):
            continue
        try:
            plan = engine.plan(ref)
        except WindlassError as error:  # one that cannot be read is not the one
            if name and isinstance(error, KeysReplaced):
                raise  # what somebody did to one's own is not passed over
            continue
        if isinstance(plan.work, Calls):
            yield ref, plan


def is_live(engine: ComputeEngine, ref: JobRef) -> bool:
    """Whether it has not ended; one that cannot be seen is as good as ended."""
    try:
        return not engine.status(ref).phase.is_final
    except KeysReplaced:
        raise
    except WindlassError:
        return False


def find_computes(wanted: Wanted) -> list[tuple[JobRef, Plan]]:
    """The computes that live, of every user."""
    engine = wanted.engine
    return [(ref, plan) for ref, plan in list_computes(engine) if is_live(engine, ref)]


def find_meant(wanted: Wanted, text: str) -> list[tuple[JobRef, Plan]]:
    """Those that live and are meant by a name, or by owner/name; if all of the name are others', an error."""
    engine = wanted.engine
    owner, name = read_owner(engine, text)
    named = list(list_computes(engine, name))
    meant = [one for one in named if is_meant(engine, *one, owner)]
    living = [one for one in meant if is_live(engine, one[0])]
    others = [name_for(engine, *one) for one in named if one not in meant]
    if owner and not living:
        hint = f"there is {others[0]}" if others else "windlass compute ls shows what is up"
        raise JobNotFound(f"{owner} has no compute {name} here", hint=hint)
    if others and not living:
        raise make_refusal(name, others[0])
    return living


def read_owner(engine: ComputeEngine, text: str) -> tuple[str, str]:
    """Owner and name in what was asked for; oneself needs no naming."""
    owner, name = split_owner(text)
    return ("" if owner in ("", name_user()) or owner == engine.identity() else owner), name


def end_job(wanted: Wanted, ref: JobRef) -> None:
    """End a compute and wait until it is gone."""
    engine = wanted.engine
    engine.cancel(ref, now=True, why="taken down")
    wait_until(lambda: engine.status(ref).phase.is_final, timeout_s=_END_S, every_s=0.02)
