"""Pods without an end time, as a node leaves them that evicts a pod and then cannot find its container."""

from __future__ import annotations

from kube.recorded import read_dead_pods

from windlass.engines.cluster.job_rules import explain_loss
from windlass.wire.status import FailureKind, Verdict

CREATED_S = 1_000_000_000.0  # 2001-09-09T01:46:40Z


def _make_pod(name: str, created: str) -> dict:
    unknown = {"exitCode": 137, "reason": "ContainerStatusUnknown", "finishedAt": None}
    return {
        "metadata": {
            "name": name,
            "creationTimestamp": created,
            "labels": {"batch.kubernetes.io/job-completion-index": "1"},
        },
        "spec": {"nodeName": "n1"},
        "status": {
            "phase": "Failed",
            "reason": "Evicted",
            "message": "Pod ephemeral local storage usage exceeds the total limit of containers 40Mi. ",
            "containerStatuses": [{"name": "windlass", "state": {"terminated": unknown}}],
        },
    }


def _lose(at_s: float) -> Verdict:
    return Verdict(kind=FailureKind.LOST_NODE, message="node 1 was lost", node=1, at_s=at_s)


def test_loss_is_explained_by_the_newest_earlier_pod():
    first = _make_pod("job-1-aaaaa", "2001-09-09T01:46:40Z")
    second = _make_pod("job-1-bbbbb", "2001-09-09T01:47:40Z")
    dead = read_dead_pods([first, second])
    assert [pod.ended_s for pod in dead] == [None, None]
    assert "job-1-aaaaa on node n1 was evicted" in explain_loss(_lose(CREATED_S + 30), dead).message
    assert "job-1-bbbbb on node n1 was evicted" in explain_loss(_lose(CREATED_S + 90), dead).message


def test_loss_before_the_pod_existed_is_not_explained():
    dead = read_dead_pods([_make_pod("job-1-aaaaa", "2001-09-09T01:46:40Z")])
    assert explain_loss(_lose(CREATED_S - 30), dead).message == "node 1 was lost"
