"""Submit of a job to a cluster: the steps, and their execution.

A submission is a list of steps, which is made without I/O. `create_objects` executes the steps and cleans
up after a failure. An export prints the steps' objects. A job's main object may need a prerequisite,
whose source object is read from the cluster first.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from windlass import names
from windlass.engines.cluster.abandoned_jobs import sweep
from windlass.engines.cluster.lease_object import (
    delete_lease,
    is_leased,
    keeps_lease,
    make_lease,
    owns_main,
)
from windlass.engines.dialects.dialect import Dialect, Prerequisite
from windlass.errors import SpecError
from windlass.kube.client.access import check_needed, check_needs
from windlass.kube.client.api import Api
from windlass.kube.client.api_errors import ClusterError, Forbidden, NotFound, Rejected
from windlass.kube.objects.fields import labels_of, name_of, uid_of
from windlass.kube.objects.kinds import JOBS, NETWORK_POLICIES, PVCS, SECRETS, SERVICES, ObjectKind
from windlass.kube.objects.manifests import (
    FileNames,
    JobFiles,
    make_claims,
    make_headless,
    make_lead_service,
    make_owner,
    make_part,
    make_policy,
    make_secret,
    pod_of,
)
from windlass.kube.objects.naming import make_labels, selects
from windlass.kube.objects.pod_template import apply_patch
from windlass.near_names import did_you_mean
from windlass.plan.plan import Plan
from windlass.spec.work import Calls
from windlass.waiting import wait_until

Object = dict[str, Any]

_UNMARKED = {"annotations": {names.ANNOTATION_SUBMIT: None}}  # removes the submission's mark
logger = logging.getLogger(__name__)

_KNOWN_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Late-bound contents of objects. Some are available only after the first objects have been created."""

    files: Callable[[], JobFiles]
    has_egress_policy: Callable[[], bool]  # whether a policy restricts egress from the job's pods
    source: Callable[[], Mapping[str, Any]] = dict  # the object that the prerequisite is made from


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One request that creates an object or patches an existing one."""

    kind: ObjectKind
    make: Callable[[Contents, Object | None], Object]
    """Makes the body from the contents and a reference to its owner.

    The owner is the main object or, before that exists, the lease."""
    patches: str = ""  # name of the object to patch (default: create one)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitSteps:
    """Stages of a submission, in order. Steps of one stage can be sent concurrently."""

    lease: Step | None
    prerequisites: tuple[Step, ...]
    main: Step
    companions: tuple[Step, ...]
    start: tuple[Step, ...]


def make_steps(dialect: Dialect, plan: Plan, file_names: FileNames, submit: str) -> SubmitSteps:
    """Return the steps: the prerequisites, the main object, its companions, and its start."""
    is_owned = owns_main(dialect, plan)
    main = Step(
        kind=dialect.kind,
        make=lambda _contents, owner: _own(
            dialect.render(plan, file_names, submit), owner if is_owned else None
        ),
    )
    is_queued = bool(pod_of(plan).queue and dialect.start)  # Kueue starts the jobs in its queues
    started = {} if is_queued else dialect.start or {}
    loses_owner = is_owned and not keeps_lease(dialect, plan)
    metadata = {**_UNMARKED, "ownerReferences": None} if loses_owner else _UNMARKED
    start = Step(
        kind=dialect.kind,
        make=lambda _contents, _owner: {**started, "metadata": metadata},
        patches=dialect.make_name(plan.job_id),
    )
    lease = Step(kind=JOBS, make=lambda _contents, _owner: make_lease(plan, submit))
    prerequisites, adopt = _make_prerequisite(dialect, plan, file_names, submit)
    return SubmitSteps(
        lease=lease if is_leased(dialect, plan) else None,
        prerequisites=prerequisites,
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
    """Return the steps that create the prerequisite and later make the main object its owner."""
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
    """Return the steps for the companions, dependencies first."""
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
    source: Mapping[str, Any] | None = None,
) -> list[Object]:
    """Return all objects that a submission creates, without owners.

    The objects are in the order to apply them: objects that pods need come first.
    """
    contents = Contents(
        files=lambda: files,
        has_egress_policy=lambda: False,
        source=lambda: source or {},
    )
    steps = make_steps(dialect, plan, files.names, submit)
    needed = [step for step in (*steps.prerequisites, *steps.companions) if not step.patches]
    return [
        *(step.make(contents, None) for step in needed),
        apply_patch(steps.main.make(contents, None), dialect.start or {}),
    ]


def read_source(api: Api, dialect: Dialect, plan: Plan) -> dict[str, Any]:
    """Return the object that the plan's prerequisite is made from, or {} if the dialect needs none."""
    needed = dialect.prerequisite
    if needed is None:
        return {}
    name = needed.source_name(plan)
    for kind in needed.sources:
        try:
            return api.get(kind, name)
        except NotFound:
            continue
        except Forbidden as error:
            if kind.namespaced:
                raise
            own = needed.sources[0].name
            error.hint = (
                f"name a {own} of namespace {api.namespace} with --runtime, or ask an admin for a "
                f"ClusterRole that may get {kind.plural}: `windlass doctor -e {dialect.name}` prints it"
            )
            raise
    kinds = " or ".join(kind.name for kind in needed.sources)
    known = list_sources(api, needed)
    there = (
        f"available: {', '.join(known)}" if known else f"ask a cluster administrator for a {kinds}"
    )
    raise SpecError(
        f"no {kinds} named {name!r} is available in namespace {api.namespace}",
        hint=did_you_mean(name, known, there),
    )


def list_sources(api: Api, needed: Prerequisite) -> list[str]:
    """Return the names of all sources that the user may list, without the copies made for jobs."""
    known: list[str] = []
    for kind in needed.sources:
        try:
            bodies = api.list(kind)
        except ClusterError:
            continue
        known += [name_of(body) for body in bodies if names.LABEL_JOB not in labels_of(body)]
    return list(dict.fromkeys(known))


def find_source(connect: Callable[[], Api], dialect: Dialect, plan: Plan) -> Mapping[str, Any]:
    """Return the source for a document. Query the cluster only if the product does not ship it."""
    needed = dialect.prerequisite
    name = needed.source_name(plan) if needed else ""
    if needed is None or name in needed.shipped:
        return needed.shipped[name] if needed else {}
    return read_source(connect(), dialect, plan)


def create_objects(
    api: Api,
    dialect: Dialect,
    plan: Plan,
    *,
    file_names: FileNames,
    make_files: Callable[[], JobFiles],
    submit: str,
) -> None:
    """Create everything the job needs, or nothing on an error.

    Missing kinds and rights are reported before anything is created. `make_files` creates the contents of
    the Secrets while the first requests are in flight. `file_names` has their names.
    """
    steps = make_steps(dialect, plan, file_names, submit)
    with ThreadPoolExecutor(max_workers=8) as pool:
        labels = {**make_labels(plan), **pod_of(plan).labels}
        egress = pool.submit(has_egress_policy, api, labels)
        pool.submit(sweep, api, dialect)
        files = pool.submit(make_files)
        contents = Contents(
            files=files.result,
            has_egress_policy=egress.result,
            source=lambda: read_source(api, dialect, plan),
        )
        created = pool.submit(_create_main, api, dialect, plan, steps, contents)
        try:
            files.result()
            owner = make_owner(dialect.kind, created.result())
            for stage in (steps.companions, steps.start):
                requests = [pool.submit(_send, api, step, contents, owner) for step in stage]
                # An object created after the main object's removal would remain for a while.
                wait(requests)
                for request in requests:
                    request.result()
            if steps.lease is not None and not keeps_lease(dialect, plan):
                delete_lease(api, plan)
        except BaseException as error:
            if created.exception() is None:
                _take_back(api, dialect, plan.job_id, error)
                if steps.lease is not None:
                    delete_lease(api, plan)
            raise


def _create_main(
    api: Api, dialect: Dialect, plan: Plan, steps: SubmitSteps, contents: Contents
) -> Object:
    check_needs(api, dialect.needs)
    check_needed(api, rights=dialect.rights)
    lease = _create_lease(api, steps.lease, contents)
    made: list[tuple[Step, Object]] = []
    try:
        for step in steps.prerequisites:
            body = step.make(contents, lease)
            made.append((step, api.create(step.kind, body, brief=True)))
        main = steps.main.make(contents, lease)
        return _create_when_known(api, dialect, main, is_named=bool(made))
    except BaseException:
        for step, body in made:
            with contextlib.suppress(ClusterError):
                api.delete(step.kind, name_of(body), uid=uid_of(body))
        if lease is not None:
            delete_lease(api, plan)
        raise


def _create_lease(api: Api, step: Step | None, contents: Contents) -> Object | None:
    """Create the lease, which cleans up the other objects if this client is killed.

    Return a reference to it, or None if the cluster refuses it. The job then runs without a lease.
    """
    if step is None:
        return None
    try:
        return make_owner(step.kind, api.create(step.kind, step.make(contents, None), brief=True))
    except (Forbidden, Rejected) as error:  # refused by a Role, a quota or a policy
        logger.debug("the job has no lease in the cluster: %s", error)
        return None


def _create_when_known(api: Api, dialect: Dialect, body: Object, *, is_named: bool) -> Object:
    """Create the main object. Retry while an admission check does not know its prerequisite yet.

    Optional fields that an older operator rejects are left out.
    """
    created: list[Object] = []
    refusals: list[Rejected] = []
    bodies = [body]

    def is_created() -> bool:
        try:
            created.append(api.create(dialect.kind, bodies[-1], brief=True))
        except Rejected as error:
            newer = dialect.newer_fields
            unknown = [newer[name] for name in newer if f'unknown field "{name}"' in error.message]
            if not unknown and not (is_named and "not found" in error.message):
                raise
            refusals.append(error)
            bodies.extend(apply_patch(bodies[-1], without) for without in unknown)
        return bool(created)

    if not wait_until(is_created, timeout_s=_KNOWN_S, every_s=0.1):
        raise refusals[-1]
    return created[0]


def _send(api: Api, step: Step, contents: Contents, owner: Object) -> None:
    body = step.make(contents, owner)
    if step.patches:
        api.patch(step.kind, step.patches, body, brief=True)
    else:
        api.create(step.kind, body, brief=True)


def _take_back(api: Api, dialect: Dialect, job_id: str, error: BaseException) -> None:
    name = dialect.make_name(job_id)
    try:
        api.delete(dialect.kind, name)
        if dialect.prerequisite is not None:  # the main object may not own it yet
            api.delete(dialect.prerequisite.kind, job_id)
    except ClusterError as left:
        if isinstance(error, ClusterError):
            held = ", suspended" if dialect.start else ""
            rest = f"{dialect.kind.name} {name} was left behind{held}: {left.message}"
            error.hint = f"{error.hint}; {rest}" if error.hint else rest


def has_egress_policy(api: Api, labels: Mapping[str, str]) -> bool:
    """Return whether a policy restricts egress from pods with these labels.

    If so, the job needs its own policy that lets its pods reach each other. Policies for other pods do not
    count, because a policy by Windlass would then restrict its pods without need.
    """
    specs = [policy["spec"] for policy in api.list(NETWORK_POLICIES)]
    return any(
        "Egress" in (spec.get("policyTypes") or ())
        and selects(spec.get("podSelector") or {}, labels)
        for spec in specs
    )
