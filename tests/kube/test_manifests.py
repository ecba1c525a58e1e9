"""Objects of a job: compared with golden files, owned by the job, and accepted by a real API server.

The API server's namespace has restricted Pod Security.
"""

from __future__ import annotations

import base64
import copy
import json
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest
from goldens import check_golden
from kube.plans import FILES, PLANS, make_pod_plan

from windlass import names
from windlass.engines.cluster.submit import render_documents
from windlass.engines.dialects.kubernetes import KUBERNETES, make_job
from windlass.engines.dialects.monarchmesh import MONARCHMESH
from windlass.engines.dialects.pytorchjob import PYTORCHJOB
from windlass.engines.dialects.raycluster import RAYCLUSTER
from windlass.engines.dialects.trainjob import RUNTIME, SHIPPED, TRAINJOB
from windlass.errors import SpecError
from windlass.kube.objects import manifests
from windlass.kube.objects.kinds import JOBS
from windlass.plan.plan import Facts, make_plan
from windlass.spec.job_spec import JobSpec
from windlass.spec.storage import read_volume
from windlass.spec.work import Script

OWNER = manifests.make_owner(JOBS, {"metadata": {"name": "train-ab2cd", "uid": "u-1"}})


DIALECTS = [KUBERNETES, MONARCHMESH, PYTORCHJOB, RAYCLUSTER, TRAINJOB]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("name", PLANS)
def test_rendered_objects_match_the_golden_files(dialect, name):
    source = SHIPPED[RUNTIME]
    documents = render_documents(dialect, PLANS[name], FILES, submit="s1", source=source)
    check_golden(f"{dialect.name}/{name}.yaml", documents)


@pytest.mark.parametrize("name", PLANS)
def test_rendering_does_not_change_its_arguments(name):
    before = copy.deepcopy(PLANS[name])
    first = render_documents(KUBERNETES, PLANS[name], FILES)
    assert render_documents(KUBERNETES, PLANS[name], FILES) == first
    assert PLANS[name] == before


def test_job_is_created_suspended_and_owns_all_other_objects():
    plan = PLANS["all"]
    job = make_job(plan, files=FILES.names, submit="s1")
    assert job["spec"]["suspend"] is True
    assert job["metadata"]["annotations"][names.ANNOTATION_SUBMIT] == "s1"
    assert "ownerReferences" not in job["metadata"]
    for owned in (
        manifests.make_headless(plan, OWNER),
        manifests.make_lead_service(plan, KUBERNETES.lead_labels, OWNER),
        manifests.make_secret(plan, FILES.own, OWNER),
        manifests.make_part(plan, 0, FILES.parts[0], OWNER),
        manifests.make_policy(plan, with_egress=True, owner=OWNER),
        *manifests.make_claims(plan, OWNER),
    ):
        assert owned["metadata"]["ownerReferences"] == [OWNER]
        assert owned["metadata"]["labels"][names.LABEL_JOB] == plan.job_id


def test_policy_allows_only_pods_of_the_same_job_at_every_port():
    """All ports are open inside a job, so the ports of frameworks such as Ray need not be listed."""
    [rule] = manifests.make_policy(PLANS["two"], with_egress=False)["spec"]["ingress"]
    assert rule == {"from": [{"podSelector": {"matchLabels": {names.LABEL_JOB: "train-ab2cd"}}}]}


def test_export_has_no_owners_and_the_job_last():
    documents = render_documents(KUBERNETES, PLANS["two"], FILES)
    assert documents[-1]["kind"] == "Job"
    assert documents[-1]["spec"]["suspend"] is False
    assert not [d for d in documents if "ownerReferences" in d["metadata"]]


def test_job_has_the_budget_of_lost_nodes():
    spec = make_job(make_pod_plan(node_restarts=7, nodes=2), files=FILES.names)["spec"]
    assert (spec["backoffLimitPerIndex"], spec["maxFailedIndexes"]) == (7, 0)
    assert (spec["completions"], spec["parallelism"]) == (2, 2)
    assert "podFailurePolicy" not in spec
    assert "activeDeadlineSeconds" not in spec


def test_active_deadline_exceeds_the_timeout_by_a_day():
    spec = make_job(make_pod_plan(timeout_s=90.5), files=FILES.names)["spec"]
    assert spec["activeDeadlineSeconds"] > 86400
    far = make_job(make_pod_plan(timeout_s=1e12), files=FILES.names)["spec"]
    assert far["activeDeadlineSeconds"] < 1 << 31


def test_pods_do_not_mount_the_client_certificate():
    secret = manifests.make_secret(PLANS["one"], {"a.txt": b"\0\xff"})
    assert base64.b64decode(secret["data"]["a.txt"]) == b"\0\xff"
    template = make_job(PLANS["one"], files=FILES.names)["spec"]["template"]
    items = template["spec"]["volumes"][0]["secret"]["items"]
    assert [item["key"] for item in items] == [
        name for name in FILES.own if not name.startswith("client")
    ]


def test_policy_has_egress_rules_only_on_request():
    assert "egress" not in manifests.make_policy(PLANS["one"], with_egress=False)["spec"]
    egress = manifests.make_policy(PLANS["one"], with_egress=True)["spec"]["egress"]
    assert {port["port"] for port in egress[1]["ports"]} == {53}


def test_other_pods_reach_only_open_ports():
    plan = PLANS["one"]
    closed = manifests.make_policy(plan, with_egress=False)["spec"]["ingress"]
    open_plan = replace(plan, pod=replace(plan.pod, open_ports=(26600,)))
    own, others = manifests.make_policy(open_plan, with_egress=False)["spec"]["ingress"]
    assert closed == [own]
    assert others == {
        "from": [{"podSelector": {}}],
        "ports": [{"port": 26600, "protocol": "TCP"}],
    }


@pytest.mark.parametrize(
    ("nodes", "volume", "mode"),
    [
        (1, "new:1Gi:/a", "ReadWriteOnce"),
        (2, "new:1Gi:/a", "ReadWriteMany"),
        (2, "new:1Gi:/a:rwo", "ReadWriteOnce"),
        (1, "new:1Gi:/a:RWX:fast", "ReadWriteMany"),
    ],
)
def test_access_modes_of_claims(nodes, volume, mode):
    plan = make_pod_plan(nodes=nodes, volumes=(read_volume(volume),))
    (claim,) = manifests.make_claims(plan)
    assert claim["spec"]["accessModes"] == [mode]
    assert claim["metadata"]["name"] == "train-ab2cd-a"


def test_plan_without_pods_is_refused():
    spec = JobSpec(work=Script(path="a.py"))
    plan = make_plan(spec, job_id="a-1", now_s=0, facts=Facts(environ={}))
    with pytest.raises(SpecError, match="has no pod spec"):
        make_job(plan, files=FILES.names)


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    """Yield a namespace with restricted Pod Security for server-side dry runs."""
    name = f"windlass-render-{uuid.uuid4().hex[:8]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    made = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": labels},
    }
    kubectl("apply", "-f", "-", given=[made])
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "trainer"}}
    kubectl("apply", "-n", name, "-f", "-", given=[account])
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


def kubectl(*words: str, given: list[dict] | None = None) -> str:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": given}) if given else None
    done = subprocess.run(
        ["kubectl", *words], input=text, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


# An operator refuses an object whose runtime does not exist, so its own tests submit that one.
ALONE = [dialect for dialect in DIALECTS if dialect.prerequisite is None]


@pytest.mark.cluster
@pytest.mark.parametrize("dialect", ALONE, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("with_egress", [False, True])
def test_api_server_accepts_every_object(namespace, dialect, name, with_egress):
    policy = manifests.make_policy(PLANS[name], with_egress=with_egress)
    documents = [*render_documents(dialect, PLANS[name], FILES, submit="s1"), policy]
    output = kubectl(
        *("apply", "-n", namespace, "--server-side", "--dry-run=server", "--validate=strict"),
        *("-f", "-"),
        given=documents,
    )
    assert output.count("serverside-applied (server dry run)") == len(documents)
    assert "Warning" not in output  # restricted Pod Security warns about templates


@pytest.mark.cluster
@pytest.mark.parametrize("name", ["one", "two", "image-user"])
def test_pods_are_admitted_under_restricted_pod_security(namespace, name):
    template = make_job(PLANS[name], files=FILES.names)["spec"]["template"]
    metadata = {**template["metadata"], "name": "pod"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    output = kubectl("create", "-n", namespace, "--dry-run=server", "-f", "-", given=[pod])
    assert "pod/pod created (server dry run)" in output
