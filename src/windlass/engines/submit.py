"""Making a job's objects on a cluster, in an order that leaves no trace when it breaks off.

The Job comes first and suspended: everything else is owned by it, so that deleting it deletes all. Only
when all is there is it resumed, and the mark of its submit taken off: one that keeps it broke off, and is
removed by who submits next. Kueue resumes its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from windlass import names
from windlass.engines.abandoned import sweep
from windlass.kube.access import check_needed
from windlass.kube.api import Api
from windlass.kube.api_errors import ClusterError
from windlass.kube.kinds import JOBS, NETWORK_POLICIES, PVCS, SECRETS, SERVICES, ObjectKind
from windlass.kube.manifests import (
    Object,
    make_claims,
    make_headless,
    make_job,
    make_lead_service,
    make_owner,
    make_policy,
    make_secret,
)
from windlass.plan.plan import Plan

# what is complete is marked no more
_START = {
    "spec": {"suspend": False},
    "metadata": {"annotations": {names.ANNOTATION_SUBMIT: None}},
}


def create_objects(
    api: Api,
    plan: Plan,
    *,
    file_names: Collection[str],
    make_files: Callable[[], Mapping[str, bytes]],
    submit: str,
) -> None:
    """Everything the job needs; on an error, nothing. Rights that it would lack later are asked for first.

    `make_files` makes what the Secret holds, `file_names`, while the first requests are on their way.
    """
    with ThreadPoolExecutor(max_workers=5) as pool:
        egress = pool.submit(has_egress_policy, api)
        pool.submit(sweep, api)
        asked = pool.submit(_create_job, api, plan, file_names, submit)
        try:
            files = make_files()
            owner = make_owner(asked.result())
            made: list[Future[Any]] = [
                pool.submit(api.create, kind, body, brief=True)
                for kind, body in _make_rest(plan, files, owner)
            ]
            policy = make_policy(plan, with_egress=egress.result(), owner=owner)
            api.create(NETWORK_POLICIES, policy, brief=True)
            for answer in made:
                answer.result()
            if not (plan.pod and plan.pod.queue):
                api.patch(JOBS, plan.job_id, _START, brief=True)
        except BaseException as error:
            if asked.exception() is None:
                _take_back(api, plan.job_id, error)
            raise


def _create_job(api: Api, plan: Plan, file_names: Collection[str], submit: str) -> Object:
    check_needed(api)
    return api.create(JOBS, make_job(plan, files=file_names, submit=submit), brief=True)


def _take_back(api: Api, job_id: str, error: BaseException) -> None:
    try:
        api.delete(JOBS, job_id)
    except ClusterError as left:
        if isinstance(error, ClusterError):
            rest = f"Job {job_id} is left there, suspended: {left.message}"
            error.hint = f"{error.hint}; {rest}" if error.hint else rest


def _make_rest(
    plan: Plan, files: Mapping[str, bytes], owner: Object
) -> list[tuple[ObjectKind, Object]]:
    return [
        (SECRETS, make_secret(plan, files, owner)),
        (SERVICES, make_lead_service(plan, owner)),
        (SERVICES, make_headless(plan, owner)),
        *((PVCS, claim) for claim in make_claims(plan, owner)),
    ]


def has_egress_policy(api: Api) -> bool:
    """Whether going out is already forbidden to somebody here: then our pods need to be let out."""
    found = api.list(NETWORK_POLICIES)
    return any("Egress" in (policy["spec"].get("policyTypes") or ()) for policy in found)
