"""Rendering and reading of TrainJobs and their runtimes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
from kube.plans import FILES, make_pod_plan
from kube.storing_cluster import merge

from windlass import names
from windlass.engines.dialects.dialect import ObjectPhase
from windlass.engines.dialects.trainjob import (
    LABEL_JOBSET,
    LABEL_STEP,
    RESERVED,
    RUNTIME,
    SHIPPED,
    TRAINJOB,
    index_in_name,
    owns,
    read_phase,
    render_runtime,
)
from windlass.errors import SpecError
from windlass.kube.diagnosis.blocker import DENIED, HALF_SUBMITTED, NOT_ADMITTED, OPERATOR_IDLE
from windlass.spec.storage import read_secret

AT = "1970-01-01T00:01:40Z"


def render(**asked: Any) -> dict[str, Any]:
    return TRAINJOB.render(make_pod_plan(**asked), FILES.names, "a mark")


def make_runtime(source: Mapping[str, Any] = SHIPPED[RUNTIME], **asked: Any) -> dict[str, Any]:
    return render_runtime(make_pod_plan(**asked), FILES.names, "a mark", source)


def step_of(runtime: dict[str, Any], name: str = "node") -> dict[str, Any]:
    steps = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    (job,) = (step["template"] for step in steps if step["name"] == name)
    return job


def make_source(**changes: Any) -> dict[str, Any]:
    """Return a runtime as an admin writes it."""
    source = copy.deepcopy(dict(SHIPPED[RUNTIME]))
    source["spec"]["template"]["spec"] |= changes
    return source


def make_job(*conditions: dict[str, Any], suspend: bool = False, **counts: int) -> dict[str, Any]:
    rendered = [
        {"status": "True", "lastTransitionTime": AT, **condition} for condition in conditions
    ]
    status = {"conditions": rendered, "jobsStatus": [{"name": "node", **counts}]}
    return {"spec": {"suspend": suspend}, "status": status}


@pytest.mark.parametrize(
    ("job", "phase"),
    [
        (make_job({"type": "Suspended"}, suspend=True, suspended=1), ObjectPhase.HELD),
        (make_job({"type": "Suspended", "status": "False"}, active=1), ObjectPhase.WAITING),
        ({"spec": {}}, ObjectPhase.WAITING),
        (make_job(active=1, ready=1), ObjectPhase.STARTED),
        (make_job({"type": "Complete"}, succeeded=1), ObjectPhase.ENDED),
        (make_job({"type": "Failed"}, failed=1), ObjectPhase.ENDED),
    ],
)
def test_its_phase(job, phase):
    assert read_phase(job) is phase


@pytest.mark.parametrize(
    ("pod", "index"),
    [
        ("train-ab2cd-node-0-0-x7k2p", 0),
        ("train-ab2cd-node-0-12-x7k2p", 12),
        ("train-ab2cd-0-x7k2p", None),
        ("other-ab2cd-node-0-0-x7k2p", None),
        ("", None),
    ],
)
def test_index_from_the_name_of_a_deleted_pod(pod, index):
    assert index_in_name(pod, "train-ab2cd") == index


@pytest.mark.parametrize(("maker", "is_own"), [("a-1-node-0", True), ("b-2-node-0", False)])
def test_trainjob_owns_the_pods_of_its_jobs(maker, is_own):
    owner = {"kind": "Job", "name": maker, "uid": "x", "controller": True}
    metadata = {"labels": {LABEL_JOBSET: "a-1"}, "ownerReferences": [owner]}
    assert owns({"metadata": metadata}, "uid") is is_own
    assert not owns({"metadata": {"labels": metadata["labels"]}}, "uid"), "a copy by another user"


def test_rendered_suspended_and_changed_by_patches():
    job = render(nodes=2)
    assert read_phase(job) is ObjectPhase.HELD
    started = merge(job, TRAINJOB.start)
    assert read_phase(started) is ObjectPhase.WAITING
    assert merge(started, TRAINJOB.suspend) == job
    assert TRAINJOB.num_pods(job) == 2


def test_trainjob_sets_the_trainer_and_uses_its_own_runtime():
    spec = render(nodes=2, procs=4, cpus="2", queue="blue", timeout_s=60.0)["spec"]
    trainer = spec["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 4)
    assert trainer["resourcesPerNode"]["limits"] == {"cpu": "2"}
    assert trainer["command"][-1] == names.FILES_FOLDER
    assert spec["runtimeRef"] == {
        "apiGroup": "trainer.kubeflow.org",
        "kind": "TrainingRuntime",
        "name": "train-ab2cd",
    }
    assert spec["activeDeadlineSeconds"] > 86400, "a backstop only: the lead keeps the time"
    assert make_runtime()["metadata"]["name"] == "train-ab2cd"


def test_variables_of_the_operator_are_not_set():
    assert {one["name"] for one in render()["spec"]["trainer"]["env"]}.isdisjoint(RESERVED)
    with pytest.raises(SpecError, match="PET_NNODES is set by Kubeflow Trainer"):
        render(secrets=(read_secret("PET_NNODES=mine:key"),))


def test_failure_policy_of_the_runtime():
    spec = step_of(make_runtime(node_restarts=5))["spec"]
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"
    assert names.EXIT_FAILED_WORK in rule["onExitCodes"]["values"]
    assert names.EXIT_STOPPED not in rule["onExitCodes"]["values"]
    assert (spec["backoffLimitPerIndex"], spec["maxFailedIndexes"]) == (5, 0)
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    variable = {"name": names.ENV_TELLS_FAILURE, "value": names.TELLS_BY_LEAD}
    assert variable in render()["spec"]["trainer"]["env"]
    assert "successPolicy" not in spec
    assert step_of(make_runtime(nodes=3, min_nodes=1))["spec"]["successPolicy"]


def test_runtime_keeps_fields_of_the_admin():
    """Sidecars, volumes, gangs and initializers are kept. Program, probes and restarts are replaced."""
    pod = {
        "schedulerName": "gang",
        "nodeSelector": {"pool": "train"},
        "containers": [
            {"name": "metrics", "image": "metrics:1"},
            {
                "name": "node",
                "image": "torch:1",
                "command": ["torchrun"],
                "args": ["--help"],
                "env": [{"name": "SITE", "value": "here"}],
                "livenessProbe": {"exec": {"command": ["false"]}},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            },
        ],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    }
    trainer = {
        "name": "node",
        "template": {
            "metadata": {"labels": {LABEL_STEP: "trainer"}},
            "spec": {"backoffLimit": 6, "template": {"spec": pod}},
        },
    }
    first = {"name": "dataset-initializer", "template": {"spec": {"template": {}}}}
    source = make_source(replicatedJobs=[first, trainer], failurePolicy={"maxRestarts": 3})
    source["spec"]["podGroupPolicy"] = {"coscheduling": {}}
    before = copy.deepcopy(source)
    runtime = make_runtime(source, node_selector={"zone": "a"})
    assert source == before
    jobset = runtime["spec"]["template"]["spec"]
    assert "failurePolicy" not in jobset
    assert step_of(runtime, "dataset-initializer") == first["template"]
    assert runtime["spec"]["podGroupPolicy"] == {"coscheduling": {}}
    spec = step_of(runtime)["spec"]
    assert "backoffLimit" not in spec
    made = spec["template"]["spec"]
    assert (made["schedulerName"], made["nodeSelector"]) == ("gang", {"pool": "train", "zone": "a"})
    node = next(one for one in made["containers"] if one["name"] == "node")
    assert not node.keys() & {"args", "livenessProbe"}
    assert node["env"] == [{"name": "SITE", "value": "here"}]
    assert {"/data", names.SECRET_FOLDER} <= {mount["mountPath"] for mount in node["volumeMounts"]}
    assert "metrics" in {one["name"] for one in made["containers"]}
    assert "data" in {volume["name"] for volume in made["volumes"]}


def test_a_runtime_without_a_step_for_our_nodes_is_refused():
    launcher = make_source(replicatedJobs=[{"name": "launcher", "template": {}}])
    with pytest.raises(SpecError, match="torch-distributed has no step 'node'"):
        make_runtime(launcher)
    mpi = make_source(replicatedJobs=[{"name": "launcher", "template": {}}])
    mpi["spec"]["mlPolicy"] = {"mpi": {}}
    with pytest.raises(SpecError, match="has no step 'node'"):
        make_runtime(mpi)


def test_launcher_of_an_mpi_runtime_is_dropped():
    """The runtime is like deepspeed-distributed of Kubeflow Trainer 2.3."""
    server = {"name": "node", "image": "deepspeed", "args": ["-De"], "command": ["/usr/sbin/sshd"]}
    pods = {"spec": {"template": {"spec": {"containers": [server]}}}}
    launcher = {
        "name": "launcher",
        "dependsOn": [{"name": "node", "status": "Ready"}],
        "template": {},
    }
    source = make_source(
        replicatedJobs=[{"name": "node", "template": pods}, launcher],
        successPolicy={"operator": "All", "targetReplicatedJobs": ["launcher"]},
    )
    source["spec"]["mlPolicy"] = {"numNodes": 1, "mpi": {"mpiImplementation": "OpenMPI"}}
    made = make_runtime(source)["spec"]
    assert made["mlPolicy"] == {"numNodes": 1, "torch": {}}
    inner = made["template"]["spec"]
    assert "successPolicy" not in inner, "it names a step that is gone"
    (step,) = inner["replicatedJobs"]
    assert step["name"] == "node"
    assert step["template"]["metadata"]["labels"][LABEL_STEP] == "trainer"
    (node, *_) = step["template"]["spec"]["template"]["spec"]["containers"]
    assert node["image"] == "deepspeed"
    assert "args" not in node


def test_patch_uses_the_common_container_name():
    extra = {"name": "windlass", "env": [{"name": "A", "value": "b"}], "tty": True}
    asked = {"patch": {"spec": {"containers": [extra], "hostNetwork": True}}}
    assert {"name": "A", "value": "b"} in render(**asked)["spec"]["trainer"]["env"]
    template = step_of(make_runtime(**asked))["spec"]["template"]
    (node,) = template["spec"]["containers"]
    assert (node["name"], node["tty"], template["spec"]["hostNetwork"]) == ("node", True, True)
    assert template["metadata"]["annotations"][names.ANNOTATION_CONTAINER] == "node"


@pytest.mark.parametrize(("queue", "reason"), [("", HALF_SUBMITTED), ("blue", NOT_ADMITTED)])
def test_blocker_of_a_suspended_job(queue, reason):
    job = render(queue=queue)
    job["metadata"]["creationTimestamp"] = AT
    (blocker,) = TRAINJOB.find_blockers(job, [], [])
    assert (blocker.reason, blocker.since_s) == (reason, 100.0)


def test_reason_of_kueue_is_shown():
    event = {
        "involvedObject": {"kind": "Workload", "name": "trainjob-train-ab2cd-1b2c3"},
        "reason": "Pending",
        "message": "couldn't assign flavors: insufficient unused quota for cpu in flavor a",
        "lastTimestamp": AT,
    }
    (blocker,) = TRAINJOB.find_blockers(render(queue="blue"), [], [event], queues=["blue"])
    assert "insufficient unused quota for cpu" in blocker.message


def make_event(kind: str, name: str, reason: str, message: str) -> dict[str, Any]:
    about = {"kind": kind, "name": name}
    return {
        "involvedObject": about,
        "type": "Warning",
        "reason": reason,
        "message": message,
        "lastTimestamp": AT,
    }


def test_idle_operator_is_named_with_its_message():
    job = merge(render(nodes=2), TRAINJOB.start)
    job["metadata"]["creationTimestamp"] = AT
    (blocker,) = TRAINJOB.find_blockers(job, [], [])
    assert (blocker.reason, blocker.since_s) == (OPERATOR_IDLE, 100.0)
    assert "Kubeflow Trainer has not made the pods of TrainJob train-ab2cd" in blocker.message
    assert "is its controller running?" in blocker.message
    failed = make_event("TrainJob", "train-ab2cd", "ResourcesCreationFailed", "no such thing")
    (blocker,) = TRAINJOB.find_blockers(job, [], [failed])
    assert blocker.message.endswith("and says: no such thing")
    resumed = {"type": "Suspended", "status": "False", "lastTransitionTime": "1970-01-01T00:03:20Z"}
    (blocker,) = TRAINJOB.find_blockers({**job, "status": {"conditions": [resumed]}}, [], [])
    assert blocker.since_s == 200.0, "only since then might it have made any"


def test_reason_for_refused_pods_comes_from_the_inner_job():
    job = merge(render(nodes=2), TRAINJOB.start)
    job["metadata"]["creationTimestamp"] = AT
    text = 'Error creating: admission webhook "guard.example" denied the request: no team label'
    event = make_event("Job", "train-ab2cd-node-0", "FailedCreate", text)
    (blocker,) = TRAINJOB.find_blockers(job, [], [event])
    assert blocker.reason == DENIED
    assert "no team label" in blocker.message
