"""Rendering and reading of RayClusters."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from kube.plans import FILES, make_pod_plan
from kube.storing_cluster import merge

from windlass import names
from windlass.engines.cluster.submit import render_documents
from windlass.engines.dialects.dialect import ObjectPhase
from windlass.engines.dialects.raycluster import (
    NO_WAIT,
    RAYCLUSTER,
    index_in_name,
    index_of,
    num_pods,
    read_phase,
    regroup,
)
from windlass.kube.diagnosis.blocker import HALF_SUBMITTED, NOT_ADMITTED
from windlass.spec.pod_spec import PodSize
from windlass.spec.work import Calls

AT = "1970-01-01T00:01:40Z"
# shortened init container of a worker, as KubeRay 1.6 creates it
WAIT = "while true; do if ray health-check --address a-head-svc:6379; then break; fi; sleep 5; done"


def render(**asked: Any) -> dict[str, Any]:
    return RAYCLUSTER.render(make_pod_plan(**asked), FILES.names, "a mark")


def templates_of(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    groups = (cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"])
    return [group["template"] for group in groups]


def container_of(template: dict[str, Any]) -> dict[str, Any]:
    (container,) = template["spec"]["containers"]
    return container


def env_of(template: dict[str, Any]) -> dict[str, Any]:
    return {env["name"]: env.get("value") for env in container_of(template)["env"]}


def make_cluster(*conditions: str, suspend: bool = False, **status: Any) -> dict[str, Any]:
    rendered = [{"type": condition, "status": "True"} for condition in conditions]
    return {"spec": {"suspend": suspend}, "status": {"conditions": rendered, **status}}


@pytest.mark.parametrize(
    ("cluster", "phase"),
    [
        (make_cluster(suspend=True, state="suspended"), ObjectPhase.HELD),
        (make_cluster(), ObjectPhase.WAITING),
        ({"spec": {}}, ObjectPhase.WAITING),
        (make_cluster("HeadPodReady"), ObjectPhase.STARTED),
        (make_cluster(state="ready"), ObjectPhase.STARTED),
    ],
)
def test_phase_is_never_the_end(cluster, phase):
    assert read_phase(cluster) is phase
    assert RAYCLUSTER.read_end(cluster) is None


@pytest.mark.parametrize(
    ("pod", "index"),
    [
        ("train-ab2cd-head-x2x3x", 0),
        ("train-ab2cd-head", 0),
        ("train-ab2cd-workers-worker-x2x3x", None),
        ("other-ab2cd-head-x2x3x", None),
        ("", None),
    ],
)
def test_only_the_head_is_recognized_by_the_name_of_a_deleted_pod(pod, index):
    assert index_in_name(pod, "train-ab2cd") == index


def test_the_head_is_node_0_and_workers_get_their_index_from_the_lead():
    head, worker = templates_of(render(nodes=3))
    assert env_of(head)[names.NODE_INDEX] == "0"
    assert env_of(worker)[names.NODE_INDEX] == names.INDEX_FROM_LEAD
    kinds = ({"ray.io/node-type": kind} for kind in ("head", "worker"))
    assert [index_of({"metadata": {"labels": labels}}) for labels in kinds] == [0, None]


def test_job_of_one_node_has_only_a_head():
    cluster = render()
    assert cluster["spec"]["workerGroupSpecs"] == []
    assert num_pods(cluster) == 1


def test_workers_are_one_group_of_fixed_size():
    cluster = render(nodes=4, min_nodes=2)
    (group,) = cluster["spec"]["workerGroupSpecs"]
    sizes = {"replicas": 3, "minReplicas": 1, "maxReplicas": 3}
    assert {key: group[key] for key in sizes} == sizes
    assert num_pods(cluster) == 4


def test_workers_may_have_another_pod_size():
    head, worker = templates_of(render(nodes=2, cpus="1", workers=PodSize(cpus="4", gpus=1)))
    assert container_of(head)["resources"]["limits"] == {"cpu": "1"}
    assert container_of(worker)["resources"]["limits"] == {"cpu": "4", "nvidia.com/gpu": "1"}


def test_agent_is_the_command_and_probes_never_kill_it():
    for template in templates_of(render(nodes=2)):
        assert template["metadata"]["annotations"]["ray.io/overwrite-container-cmd"] == "true"
        container = container_of(template)
        assert container["command"][-1] == names.FILES_FOLDER
        assert container["readinessProbe"]["exec"] == container["livenessProbe"]["exec"]
        assert container["livenessProbe"]["failureThreshold"] > 10**9
        assert env_of(template)[names.ENV_STAYS_UP] == "1"
        assert template["spec"]["restartPolicy"] == "Always"


@pytest.mark.parametrize(
    ("script", "code"), [(WAIT, 0), ("exit 7", 7)], ids=["KubeRay's wait", "anything else"]
)
@pytest.mark.parametrize("shell", [["bash", "-c", "--"], ["bash", "-lc", "--"]])
def test_a_worker_does_not_wait_for_ray_before_its_agent_starts(tmp_path, shell, script, code):
    """The init container that KubeRay adds has the agent's variables and mounts."""
    _, worker = templates_of(render(nodes=2))
    folder, _, name = env_of(worker)["BASH_ENV"].rpartition("/")
    assert folder in [mount["mountPath"] for mount in container_of(worker)["volumeMounts"]]
    assert worker["metadata"]["annotations"]["windlass.dev/bash-env"] == NO_WAIT
    (tmp_path / name).write_text(NO_WAIT)
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "BASH_ENV": str(tmp_path / name)}
    assert subprocess.run([*shell, script], env=env, timeout=20).returncode == code


def test_ranks_do_not_see_variables_of_kuberay():
    (head,) = templates_of(render())
    forgotten = env_of(head)[names.ENV_FORGET].split(",")
    assert {"RAY_ADDRESS", "KUBERAY_GEN_RAY_START_CMD", "BASH_ENV"} <= set(forgotten)


def test_patch_of_the_user_takes_precedence():
    mine = {"name": "windlass", "readinessProbe": {"periodSeconds": 5}}
    (head,) = templates_of(render(patch={"spec": {"containers": [mine]}}))
    probe = container_of(head)["readinessProbe"]
    assert (probe["periodSeconds"], probe["timeoutSeconds"]) == (5, 10)


def test_rendered_suspended_and_changed_by_patches():
    cluster = render(nodes=2)
    assert read_phase(cluster) is ObjectPhase.HELD
    started = merge(cluster, RAYCLUSTER.start)
    assert read_phase(started) is ObjectPhase.WAITING
    assert merge(started, RAYCLUSTER.suspend) == cluster
    *_, exported = render_documents(RAYCLUSTER, make_pod_plan(nodes=2), FILES)
    assert exported["spec"]["suspend"] is False


@pytest.mark.parametrize(("queue", "reason"), [("", HALF_SUBMITTED), ("blue", NOT_ADMITTED)])
def test_blocker_of_a_suspended_cluster(queue, reason):
    cluster = render(queue=queue)
    cluster["metadata"]["creationTimestamp"] = AT
    (blocker,) = RAYCLUSTER.find_blockers(cluster, [], [])
    assert (blocker.reason, blocker.since_s) == (reason, 100.0)
    assert RAYCLUSTER.read_hold(merge(cluster, RAYCLUSTER.start), events=(), queues=None) is None


def test_reason_for_a_refused_pod_is_shown():
    cluster = merge(render(nodes=2), RAYCLUSTER.start)
    cluster["metadata"]["creationTimestamp"] = AT
    event = {
        "involvedObject": {"kind": "RayCluster", "name": "train-ab2cd"},
        "reason": "FailedToCreateHeadPod",
        "message": "Failed to create head Pod a/train-ab2cd-head-, pods is forbidden: exceeded quota: one, "
        "requested: pods=1, used: pods=1, limited: pods=1",
        "lastTimestamp": AT,
    }
    (blocker,) = RAYCLUSTER.find_blockers(cluster, [], [event])
    assert blocker.message.startswith('2 of 2 pods cannot be created: the namespace\'s quota "one"')


def test_idle_operator_is_named():
    cluster = merge(render(), RAYCLUSTER.start)
    cluster["metadata"]["creationTimestamp"] = AT
    (blocker,) = RAYCLUSTER.find_blockers(cluster, [], [])
    assert "KubeRay has not made the pods of RayCluster train-ab2cd" in blocker.message


def test_blocked_workers_without_an_index_are_reported():
    cluster = merge(render(nodes=3), RAYCLUSTER.start)
    cluster["metadata"]["creationTimestamp"] = AT
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    pods = [
        {
            "metadata": {
                "name": f"train-ab2cd-workers-worker-{at}",
                "creationTimestamp": AT,
                "labels": {"ray.io/node-type": "worker"},
            },
            "spec": {"containers": [{"name": "windlass", "image": "a"}]},
            "status": {"phase": "Pending", "containerStatuses": [{"name": "windlass", **waiting}]},
        }
        for at in ("a", "b")
    ]
    blockers = RAYCLUSTER.find_blockers(cluster, pods, [])
    assert "pods train-ab2cd-workers-worker-a, train-ab2cd-workers-worker-b" in blockers[0].message


# -- computes ----------------------------------------------------------------------------------


def read_groups(cluster: dict[str, Any]) -> list[tuple[int, dict[str, str]]]:
    """Return the number of pods of each group, and their limits."""
    groups = cluster["spec"]["workerGroupSpecs"]
    return [
        (group["replicas"], container_of(group["template"])["resources"]["limits"])
        for group in groups
    ]


def test_each_worker_size_of_a_compute_is_a_group() -> None:
    """An older group is scaled to zero, because KubeRay does not change existing pods."""
    plan = make_pod_plan(work=Calls(), cpus="1")
    cluster = RAYCLUSTER.render(plan, FILES.names, "")
    head = cluster["spec"]["headGroupSpec"]
    small, large = PodSize(cpus="2"), PodSize(cpus="8", gpus=1)
    limits = [{"cpu": "2"}, {"cpu": "8", "nvidia.com/gpu": "1"}]
    for num_nodes, size, counts in (
        (3, small, [2]),
        (5, None, [4]),
        (4, large, [0, 3]),
        (2, None, [0, 1]),
        (1, None, [0, 0]),
    ):
        cluster = merge(cluster, regroup(plan, cluster, num_nodes, size))
        assert read_groups(cluster) == list(zip(counts, limits, strict=False))
        assert num_pods(cluster) == num_nodes
        assert cluster["spec"]["headGroupSpec"] == head
    cluster = merge(cluster, regroup(plan, cluster, 3, small))
    assert read_groups(cluster) == [(0, limits[1]), (2, limits[0])]
    volumes = [template["spec"]["volumes"] for template in templates_of(cluster)]
    assert all(volume == volumes[0] for volume in volumes), "workers join the same files"


def test_workers_as_large_as_the_head_need_no_size() -> None:
    plan = make_pod_plan(work=Calls(), cpus="1")
    cluster = RAYCLUSTER.render(plan, FILES.names, "")
    assert cluster["spec"]["workerGroupSpecs"] == []
    cluster = merge(cluster, regroup(plan, cluster, 3, None))
    assert read_groups(cluster) == [(2, {"cpu": "1"})]
