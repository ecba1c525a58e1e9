"""Making a job's objects on a cluster, so that nothing is left when it breaks off.

The steps are those of `engines.submit_steps`. Until its last one the main object bears a mark: one that keeps
it broke off, and is removed by the client that submits next.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait

from windlass.engines.abandoned import sweep
from windlass.engines.dialects.dialect import Dialect
from windlass.engines.lease_object import delete_lease, keeps_lease
from windlass.engines.prerequisites import read_source
from windlass.engines.submit_steps import Contents, Object, Step, SubmitSteps, make_steps
from windlass.kube.client.access import check_needed, check_needs
from windlass.kube.client.api import Api
from windlass.kube.client.api_errors import ClusterError, Forbidden, Rejected
from windlass.kube.objects.fields import name_of, uid_of
from windlass.kube.objects.kinds import NETWORK_POLICIES
from windlass.kube.objects.manifests import FileNames, JobFiles, make_owner, pod_of
from windlass.kube.objects.naming import make_labels, selects
from windlass.kube.objects.pod_template import apply_patch
from windlass.plan.plan import Plan
from windlass.waiting import wait_until

logger = logging.getLogger(__name__)

_KNOWN_S = 5.0


def create_objects(
    api: Api,
    dialect: Dialect,
    plan: Plan,
    *,
    file_names: FileNames,
    make_files: Callable[[], JobFiles],
    submit: str,
) -> None:
    """Everything the job needs; on an error, nothing. What the cluster or the user lacks is told first.

    `make_files` makes what the Secrets hold, `file_names`, while the first requests are on their way.
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
                wait(
                    requests
                )  # what comes after the main object is taken back would stay for a while
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
        for step in steps.before:
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
    """Create what ends the rest if this client is killed. Return the reference to it.

    A job whose user may not create it goes without.
    """
    if step is None:
        return None
    try:
        return make_owner(step.kind, api.create(step.kind, step.make(contents, None), brief=True))
    except (Forbidden, Rejected) as error:  # by its Role, a quota or a policy
        logger.debug("the job has no lease in the cluster: %s", error)
        return None


def _create_when_known(api: Api, dialect: Dialect, body: Object, *, is_named: bool) -> Object:
    """Create it; where it names what was just made, whoever checks it may learn of that a moment later.

    What an older operator does not know of it, and it can do without, is left out.
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
        if dialect.prerequisite is not None:  # which may not be the main object's yet
            api.delete(dialect.prerequisite.kind, job_id)
    except ClusterError as left:
        if isinstance(error, ClusterError):
            held = ", suspended" if dialect.start else ""
            rest = f"{dialect.kind.name} {name} is left there{held}: {left.message}"
            error.hint = f"{error.hint}; {rest}" if error.hint else rest


def has_egress_policy(api: Api, labels: Mapping[str, str]) -> bool:
    """Whether pods with these labels may not go out: then they need to be let out to each other.

    A policy that is for other pods means nothing here: one of ours for it would keep our pods in.
    """
    specs = [policy["spec"] for policy in api.list(NETWORK_POLICIES)]
    return any(
        "Egress" in (spec.get("policyTypes") or ())
        and selects(spec.get("podSelector") or {}, labels)
        for spec in specs
    )
