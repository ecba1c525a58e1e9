"""A pod of a compute is unavailable between calls. The same client continues."""

from __future__ import annotations

import operator
import subprocess
import threading

import pytest

import windlass as kt

pytestmark = [pytest.mark.cluster, pytest.mark.chaos]


def kubectl(*words: str) -> str:
    done = subprocess.run(["kubectl", *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def cordon(verb: str) -> None:
    for node in kubectl("get", "nodes", "-o", "name").split():
        kubectl(verb, node)


@pytest.mark.parametrize("index", [1, 0])
@pytest.mark.parametrize("down_s", [0, 20, 80])
def test_client_continues(space, down_s, index):
    compute = kt.Compute(
        engine="kubernetes", namespace=space.namespace, image=space.image, inactivity_ttl="15m"
    )
    remote = kt.fn(operator.add).to(compute).distribute("spmd", workers=2)
    try:
        assert remote(1, 2) == [3, 3]
        ref = compute.nodes().ref
        assert ref is not None
        chosen = f"batch.kubernetes.io/job-completion-index={index},windlass.dev/job={ref.job_id}"
        cordon("cordon")
        kubectl("-n", space.namespace, "delete", "pod", "-l", chosen, "--grace-period=1")
        timer = threading.Timer(down_s, cordon, ["uncordon"])
        timer.start()
        assert remote(3, 4) == [7, 7]
        timer.join()
    finally:
        cordon("uncordon")
        compute.teardown()
