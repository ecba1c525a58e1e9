"""Pods as records: moments and endings, from what a real cluster showed."""

from __future__ import annotations

from typing import Any

import pytest
from kube.recorded import load, read_pods, timeline

from windlass.kube.fields import read_time
from windlass.kube.pod_endings import read_ending
from windlass.wire.status import FailureKind


def test_times() -> None:
    assert read_time("2026-11-15T09:04:55Z") == 1794733495.0
    assert read_time("2026-11-15T09:04:55.978378Z") == pytest.approx(1794733495.978378)
    assert read_time("1970-01-01T00:00:00Z") is None
    assert read_time(None) is None


def test_the_newest_pod_of_each_node_and_those_that_died() -> None:
    seen = read_pods(load("crash").pods)
    assert {index: pod.name for index, pod in seen.newest.items()} == {
        0: "crash-0-45grm",
        1: "crash-1-7qt7j",
    }
    assert [pod.name for pod in seen.dead] == [
        "crash-0-t2dwb",
        "crash-1-mzx6d",
        "crash-0-45grm",
        "crash-1-7qt7j",
    ]
    assert not seen.newest[0].is_alive


def test_moments_of_one_pod() -> None:
    seen = load("good")
    pod = read_pods(seen.pods, seen.events).newest[0]
    times = [pod.created_s, pod.scheduled_s, pod.image_s, pod.started_s, pod.ended_s]
    assert times == sorted(filter(None, times))
    assert pod.node_name in ("n1", "n2")
    assert pod.ending is not None
    assert pod.ending.is_good


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
    for pod in read_pods(load(name).pods).dead:
        assert pod.ending is not None
        assert (pod.ending.reason, pod.ending.kind) == (reason, kind)
        assert words in pod.ending.message
        assert f"pod {pod.name} on node {pod.node_name} " in pod.ending.message


def test_a_pod_that_is_gone_is_known_from_its_events() -> None:
    seen = load("preempted")
    (dead,) = read_pods(seen.pods, seen.events).dead
    assert (dead.index, dead.name, dead.phase) == (1, "gpu-taken-1-pmhhc", "Gone")
    assert dead.ending is not None
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
def test_a_disruption_tells_more_than_an_exit_code(disruption: str, reason: str) -> None:
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


def test_the_timeline_is_that_of_the_last_needed_pod() -> None:
    seen = load("good")
    moments = timeline(seen.pods, seen.events, num_nodes=2)
    assert [moment.name for moment in moments] == ["queued", "scheduled", "image", "container"]
    times = [moment.at_s for moment in moments]
    assert times == sorted(times)
    started = [read_pods(seen.pods).newest[index].started_s for index in (0, 1)]
    assert times[-1] == max(filter(None, started))


def test_a_moment_that_a_node_has_not_passed_is_left_out() -> None:
    taken = load("gpu-taken")
    assert [m.name for m in timeline(taken.pods, taken.events, num_nodes=4)] == ["queued"]
    quota = load("quota")
    assert timeline(quota.pods, quota.events, num_nodes=4) == []
    assert timeline([], []) == []


def test_a_node_that_lost_its_pod_keeps_its_first_times() -> None:
    seen = load("crash")
    first = [
        pod for pod in seen.pods if pod["metadata"]["name"] in ("crash-0-t2dwb", "crash-1-mzx6d")
    ]
    assert timeline(seen.pods, []) == timeline(first, [])
