"""What a submit does, as one list of steps: it is carried out by `engines.submit`, and printed by an export.

Pure. Stages follow each other, the steps of one may go at once. The main object comes first and owns all
others; last it is started, and the mark of its submit taken off.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from windlass import names
from windlass.engines.dialects.dialect import Dialect
from windlass.kube.kinds import NETWORK_POLICIES, PVCS, SECRETS, SERVICES, ObjectKind
from windlass.kube.manifests import (
    make_claims,
    make_headless,
    make_lead_service,
    make_policy,
    make_secret,
)
from windlass.kube.mounts import pod_of
from windlass.plan.plan import Plan

Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What objects hold that may come later than the first of them is made."""

    files: Callable[[], Mapping[str, bytes]]  # of the Secret
    has_egress_policy: Callable[
        [], bool
    ]  # whether going out is forbidden to somebody in the namespace


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One request: an object that is created, or a patch of one that is there."""

    kind: ObjectKind
    make: Callable[[Contents, Object | None], Object]
    """The body, from the contents and a reference to the main object, once there is one."""
    is_patch: bool = False


def make_steps(
    dialect: Dialect, plan: Plan, file_names: Collection[str], submit: str
) -> tuple[tuple[Step, ...], ...]:
    """The stages of a submit: the main object, what belongs to it, its start."""
    main = Step(
        kind=dialect.kind, make=lambda _contents, _owner: dialect.render(plan, file_names, submit)
    )
    stages = ((main,), tuple(_make_companions(dialect, plan)))
    if pod_of(plan).queue and dialect.start:
        return stages  # Kueue starts its own
    # what is complete is marked no more
    unmark = {"metadata": {"annotations": {names.ANNOTATION_SUBMIT: None}}}
    start = Step(
        kind=dialect.kind,
        make=lambda _contents, _owner: {**(dialect.start or {}), **unmark},
        is_patch=True,
    )
    return (*stages, (start,))


def _make_companions(dialect: Dialect, plan: Plan) -> list[Step]:
    """In an order in which they can be applied: what others need first."""
    return [
        *(_make_claim_step(plan, at) for at in range(len(make_claims(plan)))),
        Step(kind=SERVICES, make=lambda _contents, owner: make_headless(plan, owner)),
        Step(
            kind=SERVICES,
            make=lambda _contents, owner: make_lead_service(plan, dialect.lead_labels, owner),
        ),
        Step(
            kind=NETWORK_POLICIES,
            make=lambda contents, owner: make_policy(
                plan, with_egress=contents.has_egress_policy(), owner=owner
            ),
        ),
        Step(kind=SECRETS, make=lambda contents, owner: make_secret(plan, contents.files(), owner)),
    ]


def _make_claim_step(plan: Plan, at: int) -> Step:
    return Step(kind=PVCS, make=lambda _contents, owner: make_claims(plan, owner)[at])


def render_documents(
    dialect: Dialect,
    plan: Plan,
    files: Mapping[str, bytes],
    *,
    submit: str = "",
    with_egress: bool = False,
) -> list[Object]:
    """All that a submit creates, without owners, in the order to apply: what pods need comes first."""
    contents = Contents(files=lambda: files, has_egress_policy=lambda: with_egress)
    (main,), companions, *_ = make_steps(dialect, plan, files, submit)
    body = main.make(contents, None)
    started = {**body["spec"], **(dialect.start or {}).get("spec", {})}
    return [
        *(step.make(contents, None) for step in companions),
        {**body, "spec": started},
    ]
