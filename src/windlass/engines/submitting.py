"""Making a job's objects on a cluster, in an order that leaves no trace when it breaks off.

The Job comes first and suspended: everything else is owned by it, so that deleting it deletes all. Only
when all is there is it resumed. Kueue resumes its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from windlass.kube.access import check_needed
from windlass.kube.api import Api
from windlass.kube.kinds import JOBS, NETWORK_POLICIES, PVCS, SECRETS, SERVICES, Kind
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
from windlass.kube.refusals import ClusterError
from windlass.plan.plan import Plan


def create_objects(api: Api, plan: Plan, files: Mapping[str, bytes], *, submit: str) -> None:
    """Everything the job needs; on an error, nothing. Rights that it would lack later are asked for first."""
    check_needed(api)
    job = api.create(JOBS, make_job(plan, files=files, submit=submit))
    try:
        owner = make_owner(job)
        with ThreadPoolExecutor(max_workers=4) as pool:
            made: list[Future[Any]] = [
                *(pool.submit(api.create, PVCS, claim) for claim in make_claims(plan, owner)),
                pool.submit(_create_policy, api, plan, owner),
                *(
                    pool.submit(api.create, kind, body)
                    for kind, body in _make_rest(plan, files, owner)
                ),
            ]
        for answer in made:
            answer.result()
        if not (plan.pod and plan.pod.queue):
            api.patch(JOBS, plan.job_id, {"spec": {"suspend": False}})
    except BaseException as error:
        _take_back(api, plan.job_id, error)
        raise


def _take_back(api: Api, job_id: str, error: BaseException) -> None:
    try:
        api.delete(JOBS, job_id)
    except ClusterError as left:
        if isinstance(error, ClusterError):
            rest = f"Job {job_id} is left there, suspended: {left.message}"
            error.hint = f"{error.hint}; {rest}" if error.hint else rest


def _make_rest(plan: Plan, files: Mapping[str, bytes], owner: Object) -> list[tuple[Kind, Object]]:
    return [
        (SERVICES, make_lead_service(plan, owner)),
        (SERVICES, make_headless(plan, owner)),
        (SECRETS, make_secret(plan, files, owner)),
    ]


def _create_policy(api: Api, plan: Plan, owner: Object) -> None:
    body = make_policy(plan, with_egress=has_egress_policy(api), owner=owner)
    api.create(NETWORK_POLICIES, body)


def has_egress_policy(api: Api) -> bool:
    """Whether going out is already forbidden to somebody here: then our pods need to be let out."""
    found = api.list(NETWORK_POLICIES)
    return any("Egress" in (policy["spec"].get("policyTypes") or ()) for policy in found)
