"""Owners of computes. A bare name means this user's compute. Another user's is written `owner/name`.

A compute receives secrets, and its answers are unpickled, so a name alone is no proof of ownership. A compute
belongs to this user if its keys were created on this machine. It also does if its recorded owner has this
user's name, here and on the cluster.
"""

from __future__ import annotations

import getpass

from windlass.engines.protocol import ComputeEngine, JobRef
from windlass.errors import SpecError
from windlass.plan.plan import Plan
from windlass.spec.work import Calls


def split_owner(text: str) -> tuple[str, str]:
    """Split owner/name. An empty owner means the current user.

    Compute names cannot contain slashes, but cluster user names can.
    """
    owner, _, name = text.rpartition("/")
    return owner, name


def join_owner(owner: str, name: str) -> str:
    """Return owner/name, or only the name without an owner."""
    return f"{owner}/{name}" if owner else name


def is_own(engine: ComputeEngine, ref: JobRef, plan: Plan) -> bool:
    """Return whether this user created the compute, as far as that is known."""
    if engine.is_made_here(ref):
        return True
    work = plan.work
    if not isinstance(work, Calls) or work.user != name_user():
        return False
    return work.identity == engine.identity()


def owners_of(plan: Plan) -> tuple[str, ...]:
    """Return the owner's names: the user name, and the name on the cluster."""
    work = plan.work
    known = (work.user, work.identity) if isinstance(work, Calls) else ()
    return tuple(name for name in known if name)


def is_meant(engine: ComputeEngine, ref: JobRef, plan: Plan, owner: str) -> bool:
    """Return whether a request for `owner` means this compute. An empty owner means this user."""
    return owner in owners_of(plan) if owner else is_own(engine, ref, plan)


def name_for(engine: ComputeEngine, ref: JobRef, plan: Plan) -> str:
    """Return the name that requests for a compute use: `owner/name` if another user owns it."""
    if is_own(engine, ref, plan):
        return plan.name
    # two users may have the same user name, but not the same name on the cluster
    own = (name_user(), engine.identity())
    owners = [owner for owner in owners_of(plan) if owner not in own]
    return join_owner(owners[0] if owners else "", plan.name)


def check_compute_owner(engine: ComputeEngine, ref: JobRef) -> None:
    """Raise SpecError for another user's compute that was found only by its name."""
    plan = engine.plan(ref)
    if not is_own(engine, ref, plan):
        error = make_refusal(plan.name, name_for(engine, ref, plan))
        error.hint = f"use {ref.job_id} instead of its name if you trust its owner"
        raise error


def make_refusal(name: str, qualified_name: str, *, what: str = "compute") -> SpecError:
    """Return the error for a name that belongs to another user, with a hint."""
    owner, _ = split_owner(qualified_name)
    if not owner:
        return SpecError(
            f"the {what} {name} has no recorded owner, so it is not used",
            hint="use another name; `windlass compute ls` shows its ID, and `windlass compute rm ID` ends it",
        )
    return SpecError(
        f"the {what} {name} belongs to {owner}",
        hint=f"use the name {qualified_name!r} if you trust {owner} with the data that you send; "
        "use another name to create your own",
    )


def name_user() -> str:
    """Return the user name of this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        return "user"
