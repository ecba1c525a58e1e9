"""Records of pods: their moments and endings, derived from recordings of a real cluster."""

from __future__ import annotations

from typing import Any

import pytest
from kube.recorded import load, read_dead_pods, timeline

from windlass.kube.diagnosis.pod_endings import PodIndexes, read_ending
from windlass.kube.objects.fields import log_container_of, read_time, started_s
from windlass.wire.status import FailureKind


def test_times() -> None:
    assert read_time("2026-11-15T09:04:55Z") == 1794733495.0
    assert read_time("2026-11-15T09:04:55.978378Z") == pytest.approx(1794733495.978378)
    assert read_time("1970-01-01T00:00:00Z") is None
    assert read_time(None) is None


def test_dead_pods_are_ordered_by_their_end() -> None:
    assert [pod.name for pod in read_dead_pods(load("crash").pods)] == [
        "crash-0-t2dwb",
        "crash-1-mzx6d",
        "crash-0-45grm",
        "crash-1-7qt7j",
    ]


def test_successful_pods_are_not_dead_pods() -> None:
    seen = load("good")
    assert read_dead_pods(seen.pods, seen.events) == ()
    endings = [read_ending(pod) for pod in seen.pods]
    assert all(ending is not None and ending.is_good for ending in endings)


@pytest.mark.parametrize(
    ("name", "reason", "kind", "words"),
    [
        ("oom", "OutOfMemory", FailureKind.OUT_OF_MEMORY, "ran out of memory: its limit is 64Mi"),
        ("shm", "Evicted", FailureKind.LOST_NODE, 'EmptyDir volume "s" exceeds the limit "10Mi"'),
        ("evicted", "Drained", FailureKind.LOST_NODE, "its node is being drained"),
        (
            "no-python",
            "StartError",
            FailureKind.START_FAILED,
            'no "python9" that can be run: executable file',
        ),
        ("crash", "Exited", FailureKind.USER_ERROR, "exited with code 1"),
    ],
)
def test_endings(name: str, reason: str, kind: FailureKind, words: str) -> None:
    seen = load(name)
    nodes = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in seen.pods}
    for pod in read_dead_pods(seen.pods):
        assert (pod.ending.reason, pod.ending.kind) == (reason, kind)
        assert words in pod.ending.message
        assert f"pod {pod.name} on node {nodes[pod.name]} " in pod.ending.message


def test_deleted_pod_is_known_from_its_events() -> None:
    seen = load("preempted")
    (dead,) = read_dead_pods(seen.pods, seen.events)
    assert (dead.index, dead.name, dead.created_s) == (1, "gpu-taken-1-pmhhc", None)
    assert dead.ending.reason == "Preempted"
    assert "on node n1" in dead.ending.message


def _ended(**status: Any) -> Any:
    pod = {"metadata": {"name": "p"}, "spec": {"nodeName": "n1"}, "status": status}
    return read_ending(pod)


def _terminated(**fields: Any) -> list[dict[str, Any]]:
    return [{"name": "windlass", "state": {"terminated": fields}}]


@pytest.mark.parametrize(
    ("disruption", "reason"),
    [
        ("PreemptionByScheduler", "Preempted"),
        ("DeletionByTaintManager", "NodeLost"),
        ("EvictionByEvictionAPI", "Drained"),
        ("TerminationByKubelet", "NodeStopped"),
        ("SomethingNew", "NodeStopped"),
    ],
)
def test_disruption_takes_precedence_over_the_exit_code(disruption: str, reason: str) -> None:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": disruption}
    killed = _terminated(exitCode=137, reason="Error")
    ending = _ended(phase="Failed", conditions=[condition], containerStatuses=killed)
    assert (ending.reason, ending.kind, ending.exit_code) == (reason, FailureKind.LOST_NODE, 137)


def test_an_eviction_names_the_resource() -> None:
    text = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi. "
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
    ending = _ended(phase="Failed", reason="Evicted", message=text, conditions=[condition])
    assert ending.reason == "Evicted"
    assert "on node n1 was evicted: its node ran out of memory." in ending.message


def test_other_endings() -> None:
    assert _ended(phase="Running") is None
    assert _ended(phase="Pending") is None
    assert _ended(phase="Unknown").reason == "NodeLost"
    assert _ended(phase="Failed", reason="NodeLost", message="gone").reason == "NodeLost"
    assert _ended(phase="Failed").reason == "NodeStopped"
    refused = _ended(phase="Failed", reason="OutOfcpu", message="Node didn't have enough cpu")
    assert refused.reason == "RefusedByNode"
    killed = _ended(phase="Failed", containerStatuses=_terminated(exitCode=139, reason="Error"))
    assert (killed.reason, killed.kind) == ("Killed", FailureKind.KILLED)
    assert "SIGSEGV" in killed.message
    deleted = {"metadata": {"name": "p", "deletionTimestamp": "2026-11-15T09:04:55Z"}}
    ending = read_ending({**deleted, "status": {"phase": "Running"}})
    assert ending is not None
    assert ending.reason == "Deleted"


def test_timeline_follows_the_last_needed_pod() -> None:
    seen = load("good")
    moments = timeline(seen.pods, num_nodes=2)
    assert [moment.name for moment in moments] == ["queued", "scheduled", "image", "container"]
    times = [moment.at_s for moment in moments]
    assert times == sorted(times)
    assert times[-1] == max(started_s(pod) or 0.0 for pod in seen.pods)


def test_moments_in_the_future_are_left_out() -> None:
    taken = load("gpu-taken")
    assert [m.name for m in timeline(taken.pods, num_nodes=4)] == ["queued"]
    quota = load("quota")
    assert timeline(quota.pods, num_nodes=4) == []
    assert timeline([]) == []


def test_node_with_a_replaced_pod_keeps_its_first_times() -> None:
    seen = load("crash")
    first = [
        pod for pod in seen.pods if pod["metadata"]["name"] in ("crash-0-t2dwb", "crash-1-mzx6d")
    ]
    assert timeline(seen.pods) == timeline(first)


def test_pods_created_after_all_nodes_joined_are_ignored() -> None:
    """The first pods are gone by then, and the times of the first attempt with them."""
    seen = load("good")
    moments = timeline(seen.pods, num_nodes=2)
    joined_at_s = moments[-1].at_s + 1
    assert timeline(seen.pods, num_nodes=2, joined_at_s=joined_at_s) == moments
    assert timeline(seen.pods, num_nodes=2, joined_at_s=moments[0].at_s - 60) == []


def test_pods_without_an_index_use_the_reported_ones() -> None:
    reported: dict[str, int] = {}
    head = {"metadata": {"name": "a-head"}}
    worker = {"metadata": {"name": "a-worker-x2x3x"}}
    own = PodIndexes(of_pod=lambda pod: 0 if pod is head else None, of_name=lambda _name: None)
    indexes = own.or_else(reported)
    assert (indexes.of_pod(head), indexes.of_pod(worker)) == (0, None)
    reported |= {"a-worker-x2x3x": 2, "a-head": 7}
    assert (indexes.of_pod(head), indexes.of_pod(worker)) == (0, 2)
    assert (indexes.of_name("a-worker-x2x3x"), indexes.of_name("other")) == (2, None)


def test_log_container() -> None:
    pod = {"spec": {"containers": [{"name": "worker"}, {"name": "pytorch"}]}}
    assert log_container_of(pod, "pytorch") == "pytorch"
    assert log_container_of(pod, "windlass") == "worker"
    assert log_container_of({}, "windlass") == "windlass"
