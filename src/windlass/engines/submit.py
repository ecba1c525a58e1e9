"""Making a job's objects on a cluster, so that nothing is left when it breaks off.

The steps are those of `engines.submit_steps`. Until its last one the main object bears a mark: one that keeps
it broke off, and is removed by the client that submits next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor, wait

from windlass.engines.abandoned import sweep
from windlass.engines.dialects.dialect import Dialect
from windlass.engines.submit_steps import Contents, Object, Step, make_steps
from windlass.kube.access import check_needed
from windlass.kube.api import Api
from windlass.kube.api_errors import ClusterError
from windlass.kube.kinds import NETWORK_POLICIES
from windlass.kube.manifests import make_owner
from windlass.kube.needs import check_needs
from windlass.plan.plan import Plan


def create_objects(
    api: Api,
    dialect: Dialect,
    plan: Plan,
    *,
    file_names: Collection[str],
    make_files: Callable[[], Mapping[str, bytes]],
    submit: str,
) -> None:
    """Everything the job needs; on an error, nothing. What the cluster or the user lacks is told first.

    `make_files` makes what the Secret holds, `file_names`, while the first requests are on their way.
    """
    (main,), *stages = make_steps(dialect, plan, file_names, submit)
    with ThreadPoolExecutor(max_workers=8) as pool:
        egress = pool.submit(has_egress_policy, api)
        pool.submit(sweep, api, dialect)
        files = pool.submit(make_files)
        contents = Contents(files=files.result, has_egress_policy=egress.result)
        created = pool.submit(_create_main, api, dialect, main, contents)
        try:
            files.result()
            owner = make_owner(dialect.kind, created.result())
            for stage in stages:
                requests = [
                    pool.submit(_send, api, step, contents, owner, plan.job_id) for step in stage
                ]
                wait(
                    requests
                )  # what comes after the main object is taken back would stay for a while
                for request in requests:
                    request.result()
        except BaseException as error:
            if created.exception() is None:
                _take_back(api, dialect, plan.job_id, error)
            raise


def _create_main(api: Api, dialect: Dialect, main: Step, contents: Contents) -> Object:
    check_needs(api, dialect.needs)
    check_needed(api, rights=dialect.rights)
    return api.create(main.kind, main.make(contents, None), brief=True)


def _send(api: Api, step: Step, contents: Contents, owner: Object, job_id: str) -> None:
    body = step.make(contents, owner)
    if step.is_patch:
        api.patch(step.kind, job_id, body, brief=True)
    else:
        api.create(step.kind, body, brief=True)


def _take_back(api: Api, dialect: Dialect, job_id: str, error: BaseException) -> None:
    try:
        api.delete(dialect.kind, job_id)
    except ClusterError as left:
        if isinstance(error, ClusterError):
            held = ", suspended" if dialect.start else ""
            rest = f"{dialect.kind.name} {job_id} is left there{held}: {left.message}"
            error.hint = f"{error.hint}; {rest}" if error.hint else rest


def has_egress_policy(api: Api) -> bool:
    """Whether going out is already forbidden to somebody here: then our pods need to be let out."""
    policies = api.list(NETWORK_POLICIES)
    return any("Egress" in (policy["spec"].get("policyTypes") or ()) for policy in policies)
