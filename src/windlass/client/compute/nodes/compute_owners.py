"""Owners of computes. A bare name means one's own compute; another user's is written `owner/name`.

A compute receives secrets, and its answers are unpickled. A name alone is therefore no reason to trust it.
A compute is one's own if its keys were made on this machine, or if its recorded owner is the same user,
known to the cluster by the same name.
"""

from __future__ import annotations

import getpass

from windlass.engines.protocol import ComputeEngine, JobRef
from windlass.errors import SpecError
from windlass.plan.plan import Plan
from windlass.spec.work import Calls


def split_owner(text: str) -> tuple[str, str]:
    """Owner and name; no owner: one's own. A name has no slash, but what a cluster calls a user may."""
    owner, _, name = text.rpartition("/")
    return owner, name


def join_owner(owner: str, name: str) -> str:
    """The text that `split_owner` reads."""
    return f"{owner}/{name}" if owner else name


def is_own(engine: ComputeEngine, ref: JobRef, plan: Plan) -> bool:
    """Whether this user made it, as far as that can be known."""
    if engine.is_made_here(ref):
        return True
    work = plan.work
    if not isinstance(work, Calls) or work.user != name_user():
        return False
    return work.identity == engine.identity()


def owners_of(plan: Plan) -> tuple[str, ...]:
    """The names by which its maker can be asked for."""
    work = plan.work
    known = (work.user, work.identity) if isinstance(work, Calls) else ()
    return tuple(name for name in known if name)


def is_meant(engine: ComputeEngine, ref: JobRef, plan: Plan, owner: str) -> bool:
    """Whether a request that names that owner, or none, may mean this compute."""
    return owner in owners_of(plan) if owner else is_own(engine, ref, plan)


def name_for(engine: ComputeEngine, ref: JobRef, plan: Plan) -> str:
    """What to ask for it by: its name, and before it its owner if that is somebody else."""
    if is_own(engine, ref, plan):
        return plan.name
    # of two users of one name the cluster's own name tells which
    own = (name_user(), engine.identity())
    owners = [owner for owner in owners_of(plan) if owner not in own]
    return join_owner(owners[0] if owners else "", plan.name)


def check_compute_owner(engine: ComputeEngine, ref: JobRef) -> None:
    """Refuse a compute of somebody else, that only its name led to."""
    plan = engine.plan(ref)
    if not is_own(engine, ref, plan):
        error = make_refusal(plan.name, name_for(engine, ref, plan))
        error.hint = f"write {ref.job_id} in place of its name if you trust its maker"
        raise error


def make_refusal(name: str, asked_as: str, *, what: str = "compute") -> SpecError:
    """That a name is taken by somebody else's, and what can be done."""
    owner, _ = split_owner(asked_as)
    if not owner:
        return SpecError(
            f"the {what} {name} does not say who made it, so it is not used",
            hint="use another name; windlass compute ls shows its id, windlass compute rm ID ends it",
        )
    return SpecError(
        f"the {what} {name} is not yours: {owner} made it",
        hint=f"ask for it as {asked_as!r} if you trust {owner} with what you send there; "
        "another name makes your own",
    )


def name_user() -> str:
    """The user of this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        return "user"
