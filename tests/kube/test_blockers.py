"""Blockers, derived from recordings of a real cluster."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import pytest
from kube.recorded import find_blockers, load
from kube.users import new_namespace
from waits import wait_for

from windlass.kube.client.api import Api
from windlass.kube.diagnosis.blocker import Blocker, make_condition
from windlass.kube.diagnosis.pod_endings import diagnose_container
from windlass.kube.objects.kinds import EVENTS, JOBS, PODS, RESOURCE_QUOTAS

IMAGE = os.environ.get("TESTBED_IMAGE", "localhost/python:testbed")

# name of the recording: reason, words of the message, words of the hint
SEEN = {
    "image": ("ImagePull", ["localhost/no-such:1", "connection refused"], "--image"),
    "image-registry": ("ImagePull", ["registry.invalid/team/train:2", "i/o timeout"], "reach"),
    "image-name": ("InvalidImageName", ['"Bad Image:::"', "must be lowercase"], "HOST/NAME:TAG"),
    "no-python": ("StartError", ['no "python9"', "not found in $PATH"], "--python"),
    "secret-env": ("CreateContainerConfigError", ['secret "no-secret" not found'], "--secret"),
    "secret-key": ("CreateContainerConfigError", ["h4-bad/half", 'key "k"'], "describe secret"),
    "root": ("CreateContainerConfigError", ["runs as root"], "--run-as 1000"),
    "gpu": ("Unschedulable", ["16 nvidia.com/gpu", "2 of 2 nodes"], "no node is large enough"),
    "gpu-taken": ("Unschedulable", ["8 nvidia.com/gpu", "free"], "it starts when others end"),
    "memory": ("Unschedulable", ["4Ti memory", "2 of 2 nodes"], "--memory"),
    "cpu": ("Unschedulable", ["900 cpu"], "--cpus"),
    "affinity": ("Unschedulable", ["2 of 2 nodes", "gpu=h100"], "--node-selector"),
    "pvc": ("VolumeMissing", ['"not-there" is missing'], "--volume"),
    "pvc-unbound": ("VolumeMissing", ['"waits"', "no-such-class"], "describe pvc waits"),
    "mount": ("FailedMount", ['secret "no-secret" not found'], "--secret"),
    "quota": ("QuotaExceeded", ["1 of 4 pods", '"team"', "3 of 3 are used"], "--cpus"),
    "quota-none": ("QuotaExceeded", ['"team"', "set requests.cpu"], "--cpus"),
    "rootpod": ("PodSecurity", ["restricted", "runAsNonRoot"], "--run-as"),
    "toobig": ("Denied", ["LimitRange", "maximum cpu usage per Container is 1"], "--cpus"),
    "denied": ("Denied", ['"h4-denies"', "every pod needs the label team"], "--label"),
    "account": ("ServiceAccountMissing", ['"nobody-here"'], "--service-account"),
    "suspended": (
        "Suspended",
        ["it was suspended after its submit"],
        "kubectl edit job ",
    ),
}


@pytest.mark.parametrize("name", SEEN)
def test_recorded_blockers(name: str) -> None:
    reason, words, hint = SEEN[name]
    (found,) = load(name).blockers()
    assert found.reason == reason
    assert [word for word in words if word not in found.message] == []
    assert hint in found.hint
    assert "\n" not in found.message
    assert found.since_s > 1.79e9


def test_running_and_ended_jobs_have_no_blockers() -> None:
    assert load("good").blockers() == []
    assert load("crash").blockers() == [], "it has failed: the failure verdict reports it"
    assert load("shm").blockers() == [], "its pods are replaced"


def test_pods_with_the_same_problem_are_reported_together() -> None:
    (found,) = load("image").blockers()
    assert found.message.startswith("pods image-0-vw9sk, image-1-mbzct: the image")
    assert found.pod == "image-0-vw9sk"


def test_biggest_node_is_named_if_nodes_are_readable() -> None:
    nodes = [
        {"status": {"allocatable": {"nvidia.com/gpu": n, "memory": "8039820Ki"}}} for n in "48"
    ]
    assert "the biggest node has 8 nvidia.com/gpu" in load("gpu").blockers(nodes=nodes)[0].message
    assert "the biggest node has 7.667Gi memory" in load("memory").blockers(nodes=nodes)[0].message


def test_repeatedly_failing_pod_is_a_crash_loop() -> None:
    seen = load("crash")
    seen.job["status"]["conditions"] = []
    found = seen.blockers(last_lines={"crash-0-45grm": "windlass-agent: no plan at /x\n"})
    assert [b.reason for b in found] == ["CrashLoop", "CrashLoop"]
    assert found[0].message == (
        "pod crash-0-45grm: its pod ended 2 times: exit code 1, windlass-agent: no plan at /x"
    )


def test_interrupted_submit_is_recognized() -> None:
    seen = load("suspended")
    seen.job["metadata"].setdefault("annotations", {})["windlass.dev/submit"] = "ab2cd"
    (blocker,) = seen.blockers()
    assert blocker.reason == "HalfSubmitted"
    assert "never started" in blocker.message


def test_reason_of_kueue_is_shown() -> None:
    seen = load("suspended")
    seen.job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "team-a"
    why = (
        "couldn't assign flavors to pod set main: insufficient unused quota for cpu, 2 more needed"
    )
    event = {
        "reason": "Pending",
        "message": why,
        "involvedObject": {"kind": "Workload", "name": "job-suspended-1a2b3"},
        "metadata": {"creationTimestamp": "2026-11-15T09:06:00Z"},
    }
    seen.events.append(event)
    (blocker,) = seen.blockers()
    assert (blocker.reason, blocker.message) == (
        "NotAdmitted",
        f'it waits in the queue "team-a": {why}',
    )
    event["involvedObject"] = {"kind": "Workload", "name": "job-another-1a2b3"}
    (unread,) = seen.blockers()
    assert unread.message == 'it waits in the queue "team-a"'


def _pending(message: str, *, nodes: Any = (), **spec: Any) -> list[Blocker]:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
        "lastTransitionTime": "2026-11-15T09:04:55Z",
    }
    pod = {
        "metadata": {"name": "p-0", "labels": {"batch.kubernetes.io/job-completion-index": "0"}},
        "spec": {"containers": [{"name": "windlass"}], **spec},
        "status": {"phase": "Pending", "conditions": [condition]},
    }
    return find_blockers({"spec": {"parallelism": 1}}, [pod], [], nodes=nodes)


def test_taints_labels_and_more_are_counted() -> None:
    (found,) = _pending(
        "0/5 nodes are available: 1 node(s) had untolerated taint {workload: batch}, "
        "1 node(s) were unschedulable, 3 node(s) didn't match Pod's node affinity/selector. "
        "preemption: 0/5 nodes are available: 5 Preemption is not helpful for scheduling."
    )
    assert found.message == (
        "pod p-0: no node is suitable: 1 of 5 nodes have an untolerated taint {workload: batch}; "
        "1 of 5 nodes do not accept new pods; 3 of 5 nodes do not have the requested labels"
    )
    assert found.hint == "change --node-selector and --toleration workload=batch"


TAINTED = (
    "0/3 nodes are available: 3 node(s) had untolerated taint(s). preemption: 0/3 nodes are "
    "available: 3 Preemption is not helpful for scheduling."
)


def _taint(key: str, value: str = "", effect: str = "NoSchedule") -> dict[str, Any]:
    return {"spec": {"taints": [{"key": key, "value": value, "effect": effect}]}}


def test_unnamed_taints_are_read_from_the_nodes() -> None:
    nodes = [
        _taint("nvidia.com/gpu", "present"),
        _taint("team"),
        _taint("node.kubernetes.io/unreachable"),
        _taint("a", effect="PreferNoSchedule"),
    ]
    (found,) = _pending(TAINTED, nodes=nodes)
    assert found.hint == "change --toleration nvidia.com/gpu=present --toleration team"


def test_hint_has_an_example_if_the_taint_is_unknown() -> None:
    (found,) = _pending(TAINTED)
    assert "--toleration (such as nvidia.com/gpu=present; `kubectl describe nodes" in found.hint


def test_hint_names_the_toleration_for_tainted_nodes() -> None:
    (found,) = _pending(
        "0/5 nodes are available: 2 Insufficient nvidia.com/gpu, 3 node(s) had untolerated taint "
        "{nvidia.com/gpu: present}. preemption: not eligible due to preemptionPolicy=Never."
    )
    assert "--gpus" in found.hint
    assert found.hint.endswith("may use tainted nodes: --toleration nvidia.com/gpu=present")


def test_image_is_named_as_requested() -> None:
    """A node that knows an image by several names may report any of them."""
    for name in ("no-python", "image"):
        seen = load(name)
        for pod in seen.pods:
            pod["spec"]["containers"][0]["image"] = "team/train:2"
        (found,) = seen.blockers()
        assert "team/train:2" in found.message
        assert "localhost" not in found.message.partition(" cannot be pulled")[0]


@pytest.mark.parametrize(("tag", "has_hint"), [(":latest", True), ("", True), (":1.2", False)])
def test_hint_for_a_moving_tag(tag: str, has_hint: bool) -> None:
    image = f"registry.invalid/team/train{tag}"
    waiting = {
        "reason": "ErrImagePull",
        "message": f'failed to pull "{image}": dial tcp: i/o timeout',
    }
    status = {"name": "windlass", "image": image, "state": {"waiting": waiting}}
    spec = {"containers": [{"name": "windlass", "image": image}]}
    pod = {"metadata": {"name": "a"}, "spec": spec, "status": {"containerStatuses": [status]}}
    found = diagnose_container(pod)
    assert found is not None
    assert ("a tag that can move" in found.hint) is has_hint


def test_runtime_error_is_not_blamed_on_the_image() -> None:
    seen = load("no-python")
    for pod in seen.pods:
        state = pod["status"]["containerStatuses"][0]["state"]["terminated"]
        state["message"] = "OCI runtime create failed: cannot allocate memory: unknown"
    (found,) = seen.blockers()
    assert (found.reason, found.is_hopeless) == ("RuntimeRefused", False)
    assert load("no-python").blockers()[0].is_hopeless


def test_unknown_scheduler_message_is_passed_on() -> None:
    (found,) = _pending("0/2 nodes are available: 2 node(s) dislike Mondays.")
    assert "2 of 2: node(s) dislike Mondays" in found.message
    (odd,) = _pending("something else entirely")
    assert "something else entirely" in odd.message


def test_webhook_that_does_not_answer() -> None:
    seen = load("denied")
    seen.events[-1]["message"] = (
        'Error creating: Internal error occurred: failed calling webhook "pods.kueue.io": '
        "failed to call webhook: connection refused"
    )
    (found,) = seen.blockers()
    assert 'webhook "pods.kueue.io" does not answer' in found.message


def test_blocker_survives_a_replaced_pod() -> None:
    seen = load("no-python")
    for index in ("0", "1"):
        seen.pods.append(
            {
                "metadata": {
                    "name": f"no-python-{index}-zzzzz",
                    "labels": {"batch.kubernetes.io/job-completion-index": index},
                    "creationTimestamp": "2026-11-15T09:06:00Z",
                },
                "status": {"phase": "Pending"},
            }
        )
    (found,) = seen.blockers()
    assert found.reason == "StartError"


def test_refusal_is_dropped_once_the_pods_exist() -> None:
    seen = load("quota")
    pod = {**seen.pods[-1], "metadata": {**seen.pods[-1]["metadata"], "name": "quota-3-zzzzz"}}
    seen.pods.append(pod)
    assert seen.blockers() == []


def test_hopeless_blockers_come_first() -> None:
    pods = [*load("gpu").pods, *load("image").pods]
    for index, pod in enumerate(pods):
        pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] = str(index)
    found = find_blockers({"spec": {"parallelism": 4}}, pods, [])
    assert [blocker.reason for blocker in found] == ["ImagePull", "Unschedulable"]


def test_pod_on_an_unresponsive_node() -> None:
    seen = load("good")
    seen.job["status"]["conditions"] = []
    pod = seen.pods[0]
    pod["metadata"]["deletionTimestamp"] = "2026-11-15T09:05:55Z"
    pod["status"] = {
        "phase": "Running",
        "conditions": [
            {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "DeletionByTaintManager",
                "lastTransitionTime": "2026-11-15T09:05:50Z",
            }
        ],
    }
    (found,) = seen.blockers()
    assert found.reason == "NodeLost"
    assert f"on node {pod['spec']['nodeName']} was removed" in found.message
    assert "--force" in found.hint


def test_condition_of_a_blocker() -> None:
    condition = make_condition(Blocker(reason="R", message="so it is", hint="do this", since_s=5.0))
    assert (condition.type, condition.reason) == ("blocker", "R")
    assert (condition.message, condition.hint) == ("so it is", "do this")
    assert condition.text == "so it is -> do this"
    assert condition.since_s == 5.0


def test_almost_empty_objects_are_accepted() -> None:
    assert find_blockers({}, [], []) == []
    assert find_blockers({}, [{"metadata": {}}], [{"reason": "Odd"}]) == []


def _job(name: str, container: dict[str, Any], **pod: Any) -> dict[str, Any]:
    labels = {"windlass.dev/job": name}
    command = ["python3", "-c", "pass"]
    resources = {"limits": {"memory": "64Mi"}}  # a quota requires this of every pod
    ours = {
        "name": "windlass",
        "image": IMAGE,
        "command": command,
        "resources": resources,
        **container,
    }
    template = {"restartPolicy": "Never", "containers": [ours], **pod}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "completions": 2,
            "parallelism": 2,
            "completionMode": "Indexed",
            "template": {"metadata": {"labels": labels}, "spec": template},
        },
    }


def _limits(**limits: str) -> dict[str, Any]:
    return {
        "resources": {"limits": {name.replace("_", "/"): size for name, size in limits.items()}}
    }


CLAIM = {"name": "d", "persistentVolumeClaim": {"claimName": "not-there"}}
TOKEN = {"name": "T", "valueFrom": {"secretKeyRef": {"name": "not-there", "key": "k"}}}
GPUS = {"resources": {"limits": {"memory": "64Mi", "nvidia.com/gpu": "4096"}}}
BIG = {"resources": {"limits": {"memory": "900Gi"}}}
LIVE = {
    "name": (_job("name", {"image": "localhost/No-Such:1"}), "InvalidImageName", "No-Such"),
    "gpu": (_job("gpu", GPUS), "Unschedulable", "4096 nvidia.com/gpu"),
    "claim": (_job("claim", {}, volumes=[CLAIM]), "VolumeMissing", '"not-there" is missing'),
    "secret": (_job("secret", {"env": [TOKEN]}), "CreateContainerConfigError", '"not-there"'),
    "program": (_job("program", {"command": ["python9"]}), "StartError", '"python9"'),
    "quota": (_job("quota", BIG), "QuotaExceeded", "a pod requests 900Gi limits.memory"),
}


def _look(api: Api, name: str) -> list[Blocker]:
    labels = f"windlass.dev/job={name}"
    return find_blockers(
        api.get(JOBS, name),
        api.list(PODS, labels=labels),
        api.list(EVENTS),
        api.list(RESOURCE_QUOTAS),
    )


@pytest.mark.cluster
def test_real_cluster_shows_the_same_blocker() -> None:
    quota = {"metadata": {"name": "team"}, "spec": {"hard": {"limits.memory": "800Gi"}}}
    with new_namespace() as api:
        api.create(RESOURCE_QUOTAS, quota)
        for job, _, _ in LIVE.values():
            api.create(JOBS, job)
        found: dict[str, list[Blocker]] = {}

        def is_shown(name: str, reason: str) -> bool:
            found[name] = _look(api, name)
            return [blocker.reason for blocker in found[name]] == [reason]

        for name, (_, reason, word) in LIVE.items():
            wait_for(partial(is_shown, name, reason), f"{name} shows {reason}", timeout_s=45)
            assert word in found[name][0].message
