"""A machine loses its power, or its network for a while. Attempts never overlap, and training continues."""

from __future__ import annotations

import time

import pytest
from chaos_cluster.ground import Ground, on_every_engine, wait_for
from chaos_cluster.trained import check_results, measure, wait_for_step

import windlass as wl
from windlass.wire.status import JobStatus

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(480)]
TOTAL = 120
SEEN_S = 5.0  # time in which a lead notices a lost node
FENCE_S = 10.0  # time after which a node without a lead kills its ranks
GRACE_S = 2.0 + 5.0  # their grace period, and the delay of a busy machine


def _start(ground: Ground) -> tuple[wl.Job, dict[int, str]]:
    """Start a training job, and return it with the machine of each of its nodes."""
    job = ground.train({"total": TOTAL})
    wait_for_step(job, 12)
    hosts = {node: str(ground.live_pod(job.id, node)["spec"]["nodeName"]) for node in (0, 1)}
    assert hosts[0] != hosts[1], hosts
    return job, hosts


def _is_lost(status: JobStatus) -> bool:
    return bool(status.history)


def _is_stepping_again(status: JobStatus) -> bool:
    return status.attempt == 1 and status.progress.step is not None


def _check(job: wl.Job, node: int) -> dict:
    results = job.results(timeout_s=240)
    (verdict,) = job.status().history
    assert (verdict.kind.value, verdict.node, verdict.attempt) == ("lost node", node, 0), verdict
    return check_results(results, total=TOTAL)


@pytest.mark.parametrize("node", [1, 0])
@on_every_engine
def test_machine_without_power(ground, testbed, node):
    job, hosts = _start(ground)
    before = ground.uids(job.id)
    testbed.off(hosts[node])
    off_s = time.time()
    measure(job, _is_stepping_again, 240)
    shown_s = time.time() - off_s
    pod = ground.live_pod(job.id, node)
    assert pod["spec"]["nodeName"] == hosts[1 - node]  # the only other machine
    assert pod["metadata"]["uid"] not in before
    spans = _check(job, node)
    ground.check_object(job.id, is_complete=True)
    (verdict,) = job.status().history
    ended_s = spans[0].until_s - off_s
    again_s = spans[1].stepped_s - off_s
    print(
        f"node {node} off: ranks ended after {ended_s:.1f} s, stepping again after {again_s:.1f} s"
    )
    print(f"which was shown after {shown_s:.1f} s")
    if node == 1:
        print(f"missed by its lead after {verdict.at_s - off_s:.1f} s")
        assert verdict.at_s - off_s <= SEEN_S
        assert hosts[1] in verdict.message
        assert ended_s <= SEEN_S + GRACE_S
    else:
        assert ended_s <= FENCE_S + GRACE_S


def test_short_network_cut(ground, testbed):
    """The cut is shorter than Kubernetes' eviction, so the same pods continue."""
    job, hosts = _start(ground)
    before = ground.uids(job.id)
    testbed.cut(hosts[1])
    cut_s = time.time()
    measure(job, _is_lost, 30)
    assert job.status().history[0].at_s - cut_s <= SEEN_S
    testbed.heal(hosts[1])
    measure(job, _is_stepping_again, 120)
    print(f"stepping again {time.time() - cut_s:.1f} s after a cut of a few seconds")
    _check(job, 1)
    assert ground.uids(job.id) == before


@pytest.mark.parametrize("node", [1, 0])
@on_every_engine
def test_long_network_cut(ground, testbed, node):
    """Another pod replaces the lost one, which is still running on the disconnected machine."""
    job, hosts = _start(ground)
    before = ground.uids(job.id)
    testbed.cut(hosts[node])
    cut_s = time.time()
    measure(job, _is_stepping_again, 240)
    shown_s = time.time() - cut_s
    testbed.heal(hosts[node])
    spans = _check(job, node)
    again_s = spans[1].stepped_s - cut_s
    print(f"node {node} cut off: stepping again after {again_s:.1f} s, shown after {shown_s:.1f} s")
    assert spans[0].until_s - cut_s <= FENCE_S + GRACE_S
    after = ground.uids(job.id)
    assert len(after - before) == 1
    wait_for(lambda: len(ground.pods(job.id)) == 2, "the old pod is gone", 60)
