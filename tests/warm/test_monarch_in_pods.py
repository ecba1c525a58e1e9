"""Monarch in pods: a mesh for a function, and pods that Monarch's own client finds.

Skipped if no cluster node has an image with Monarch, or if Monarch is not installed locally.
"""

from __future__ import annotations

import pytest
from waits import wait_for

import windlass as kt
from windlass.kube.objects.kinds import NODES, PODS, SERVICE_ACCOUNTS, ObjectKind

pytest.importorskip("monarch.actor", reason="Monarch is not installed: pip install torchmonarch")
import monarch_tasks

IMAGE = "localhost/monarch:testbed"
RBAC = "rbac.authorization.k8s.io"
ROLES = ObjectKind(f"{RBAC}/v1", "roles", "Role")
BINDINGS = ObjectKind(f"{RBAC}/v1", "rolebindings", "RoleBinding")
CONTROLLER = """
import sys
from monarch.actor import Actor, current_rank, endpoint
from monarch.job.kubernetes import KubernetesJob

class Counter(Actor):
    @endpoint
    def count(self):
        return current_rank().rank

job = KubernetesJob(namespace=sys.argv[1], timeout=60)
job.add_mesh("theirs", 2, pod_rank_label="batch.kubernetes.io/job-completion-index")
mesh = job.state(cached_path=None).theirs
counters = mesh.spawn_procs({"gpus": 1}).spawn("counters", Counter)
print("counted", [one for _, one in counters.count.call().get(timeout=60).items()], flush=True)
"""
pytestmark = [pytest.mark.cluster_only, pytest.mark.timeout(500)]


@pytest.fixture(scope="module")
def compute(on):
    nodes = on.space.api.list(NODES)
    names = [n for node in nodes for one in node["status"].get("images", ()) for n in one["names"]]
    if IMAGE not in names:
        pytest.skip(f"no node has {IMAGE}")
    mesh = {"mesh_name": "theirs", "open_mesh": True}
    yield on.make(image=IMAGE, cpus="500m", launch_timeout="400s", **mesh)
    on.clean()


def distribute(compute, function):
    return kt.fn(function).to(compute).distribute(framework="monarch", workers=2)


def test_workers_stay_between_calls(compute):
    said = distribute(compute, monarch_tasks.greet)("ab")
    assert said == {"sizes": {"hosts": 2}, "said": [f"ab {rank}" for rank in range(4)]}
    first, second = (distribute(compute, monarch_tasks.look)() for _ in range(2))
    assert (first["hosts"], first["workers"]) == (second["hosts"], second["workers"])
    assert [host.rpartition(":")[2] for host in first["hosts"]] == ["26600", "26600"]


def test_monarchs_own_client_finds_the_pods_and_uses_them(on, compute):
    api = on.space.api
    distribute(compute, monarch_tasks.greet)("x")
    for kind, body in make_controller(api.namespace):
        api.create(kind, body)

    def has_ended() -> bool:
        phase = api.get(PODS, "controller")["status"].get("phase")
        return phase in ("Succeeded", "Failed")

    wait_for(has_ended, "the controller has ended", 150.0)
    said = api.read_log("controller").decode()
    assert "counted [0, 1]" in said, said


def make_controller(namespace):
    """Return the objects of a pod that may list pods, as in Monarch's guide."""
    name = {"metadata": {"name": "controller", "namespace": namespace}}
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    subject = {"kind": "ServiceAccount", "name": "controller", "namespace": namespace}
    container = {
        "name": "controller",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-u", "-c", CONTROLLER, namespace],
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "USER", "value": "user"}],
        "resources": {"requests": {"cpu": "300m"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    pod = {
        "serviceAccountName": "controller",
        "restartPolicy": "Never",
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
    }
    reference = {"apiGroup": RBAC, "kind": "Role", "name": "controller"}
    return [
        (SERVICE_ACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", **name}),
        (ROLES, {"apiVersion": f"{RBAC}/v1", "kind": "Role", **name, "rules": [rule]}),
        (
            BINDINGS,
            {
                "apiVersion": f"{RBAC}/v1",
                "kind": "RoleBinding",
                **name,
                "subjects": [subject],
                "roleRef": reference,
            },
        ),
        (PODS, {"apiVersion": "v1", "kind": "Pod", **name, "spec": pod}),
    ]


def test_lost_pod_fails_the_call_and_the_next_gets_a_new_mesh(on, compute, shared):
    before = distribute(compute, monarch_tasks.look)()
    uids = on.pod_uids(compute)
    call = distribute(compute, monarch_tasks.sleep_with_actors).submit()
    wait_for(lambda: call.status().phase.value == "running", "it runs")
    on.end_node(compute, 1, ("", 0, ""))
    verdict = call.wait(60).verdict
    assert (verdict.kind.value, verdict.node) == ("lost node", 1)
    wait_for(lambda: on.pod_uids(compute).get(1, uids[1]) != uids[1], "the pod is replaced")
    after = distribute(compute, monarch_tasks.look)()
    assert (len(after["hosts"]), after["workers"] != before["workers"]) == (2, True)
