"""What a submit does, as one list of steps: it is carried out by `engines.submit`, and printed by an export.

Pure. Stages follow each other, the steps of one may go at once. The main object comes first, after what it
cannot be made without, and owns all others; last it is started, and the mark of its submit taken off. Where
nothing else would end what a killed client leaves, a lease comes before all (`engines.lease_object`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from windlass import names
from windlass.engines.dialects.dialect import Dialect
from windlass.engines.lease_object import is_leased, keeps_lease, make_lease, owns_main
from windlass.kube.objects.kinds import JOBS, NETWORK_POLICIES, PVCS, SECRETS, SERVICES, ObjectKind
from windlass.kube.objects.manifests import (
    FileNames,
    JobFiles,
    make_claims,
    make_headless,
    make_lead_service,
    make_part,
    make_policy,
    make_secret,
    pod_of,
)
from windlass.kube.objects.pod_template import apply_patch
from windlass.plan.plan import Plan
from windlass.spec.work import Calls

Object = dict[str, Any]

_UNMARKED = {"annotations": {names.ANNOTATION_SUBMIT: None}}  # what is complete is marked no more


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What objects hold that may come later than the first of them is made."""

    files: Callable[[], JobFiles]
    has_egress_policy: Callable[
        [], bool
    ]  # whether going out is forbidden to somebody in the namespace
    source: Callable[[], Mapping[str, Any]] = dict  # what the prerequisite is made from


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One request: an object that is created, or a patch of one that is there."""

    kind: ObjectKind
    make: Callable[[Contents, Object | None], Object]
    """The body, from the contents and a reference to its owner: the main object, once there is one, else
    the lease."""
    patches: str = ""  # the name of the object; empty: one is created


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitSteps:
    """One after another; those of one stage may go at once."""

    lease: Step | None
    before: tuple[Step, ...]
    main: Step
    companions: tuple[Step, ...]
    start: tuple[Step, ...]


def make_steps(dialect: Dialect, plan: Plan, file_names: FileNames, submit: str) -> SubmitSteps:
    """What must be there first, the main object, what belongs to it, its start."""
    is_owned = owns_main(dialect, plan)
    main = Step(
        kind=dialect.kind,
        make=lambda _contents, owner: _own(
            dialect.render(plan, file_names, submit), owner if is_owned else None
        ),
    )
    is_queued = bool(pod_of(plan).queue and dialect.start)  # Kueue starts its own
    started = {} if is_queued else dialect.start or {}
    is_let_go = is_owned and not keeps_lease(dialect, plan)
    metadata = {**_UNMARKED, "ownerReferences": None} if is_let_go else _UNMARKED
    start = Step(
        kind=dialect.kind,
        make=lambda _contents, _owner: {**started, "metadata": metadata},
        patches=dialect.make_name(plan.job_id),
    )
    lease = Step(kind=JOBS, make=lambda _contents, _owner: make_lease(plan, submit))
    before, adopt = _make_prerequisite(dialect, plan, file_names, submit)
    return SubmitSteps(
        lease=lease if is_leased(dialect, plan) else None,
        before=before,
        main=main,
        companions=(*_make_companions(dialect, plan, file_names.num_parts), *adopt),
        start=(start,),
    )


def _own(body: Object, owner: Object | None) -> Object:
    """Return the object with its owner, if it has one."""
    if owner is None:
        return body
    return {**body, "metadata": {**body["metadata"], "ownerReferences": [owner]}}


def _make_prerequisite(
    dialect: Dialect, plan: Plan, file_names: FileNames, submit: str
) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """What makes it, and what gives it to the main object once that is there."""
    needed = dialect.prerequisite
    if needed is None:
        return (), ()
    make = Step(
        kind=needed.kind,
        make=lambda contents, owner: _own(
            needed.render(plan, file_names, submit, contents.source()), owner
        ),
    )
    adopt = Step(
        kind=needed.kind,
        make=lambda _contents, owner: {"metadata": {"ownerReferences": [owner], **_UNMARKED}},
        patches=plan.job_id,
    )
    return (make,), (adopt,)


def _make_companions(dialect: Dialect, plan: Plan, num_parts: int) -> list[Step]:
    """In an order in which they can be applied: what others need first."""
    lead = dialect.lead_labels
    if isinstance(plan.work, Calls):
        lead = {**lead, **dialect.compute_lead_labels(plan.job_id)}
    return [
        *(_make_claim_step(plan, at) for at in range(len(make_claims(plan)))),
        Step(kind=SERVICES, make=lambda _contents, owner: make_headless(plan, owner)),
        Step(
            kind=SERVICES,
            make=lambda _contents, owner: make_lead_service(plan, lead, owner),
        ),
        Step(
            kind=NETWORK_POLICIES,
            make=lambda contents, owner: make_policy(
                plan, with_egress=contents.has_egress_policy(), owner=owner
            ),
        ),
        Step(
            kind=SECRETS,
            make=lambda contents, owner: make_secret(plan, contents.files().own, owner),
        ),
        *(_make_part_step(plan, at) for at in range(num_parts)),
    ]


def _make_claim_step(plan: Plan, at: int) -> Step:
    return Step(kind=PVCS, make=lambda _contents, owner: make_claims(plan, owner)[at])


def _make_part_step(plan: Plan, at: int) -> Step:
    def make(contents: Contents, owner: Object | None) -> Object:
        return make_part(plan, at, contents.files().parts[at], owner)

    return Step(kind=SECRETS, make=make)


def render_documents(
    dialect: Dialect,
    plan: Plan,
    files: JobFiles,
    *,
    submit: str = "",
    with_egress: bool = False,
    source: Mapping[str, Any] | None = None,
) -> list[Object]:
    """All that a submit creates, without owners, in the order to apply: what pods need comes first."""
    contents = Contents(
        files=lambda: files,
        has_egress_policy=lambda: with_egress,
        source=lambda: source or {},
    )
    steps = make_steps(dialect, plan, files.names, submit)
    needed = [step for step in (*steps.before, *steps.companions) if not step.patches]
    return [
        *(step.make(contents, None) for step in needed),
        apply_patch(steps.main.make(contents, None), dialect.start or {}),
    ]
