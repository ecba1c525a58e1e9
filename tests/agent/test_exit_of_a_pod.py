"""Exit code of a pod's agent after the job ended: 0, or the job's outcome if something reads it."""

from __future__ import annotations

import signal

import pytest
from restarted_pods import PodJob
from waits import wait_for

from windlass import names


@pytest.fixture
def start(tmp_path):
    """Yield a function that starts the two pods of a job."""
    jobs = []

    def start_pods(script, *, tells_failure=True):
        jobs.append(PodJob(tmp_path, script, nodes=2))
        kind = {"stays_up": False, "tells_failure": tells_failure}
        return [jobs[-1].start(index, **kind) for index in (0, 1)]

    yield start_pods
    for job in jobs:
        job.clear()


@pytest.mark.parametrize(
    ("script", "tells_failure", "code"),
    [
        ("exit 0", True, 0),
        ("exit $RANK", True, names.EXIT_FAILED_WORK),
        ("exit $RANK", False, 0),
    ],
)
def test_every_pod_exits_with_the_outcome(start, script, tells_failure, code):
    pods = start(script, tells_failure=tells_failure)
    assert [pod.process.wait(60) for pod in pods] == [code, code]


def test_forgotten_variables_do_not_reach_ranks(tmp_path):
    job = PodJob(tmp_path, f"echo $A,$PET_RDZV_ID > {tmp_path}/seen")
    pod = job.start(0, stays_up=False, A="kept", PET_RDZV_ID="x", WINDLASS_FORGET="PET_RDZV_ID,B")
    assert pod.process.wait(60) == 0
    assert (tmp_path / "seen").read_text() == "kept,\n"


def test_pod_stopped_before_the_end_has_not_failed(start, tmp_path):
    pods = start("sleep 60")
    wait_for(lambda: (tmp_path / "runs").exists(), "a rank runs")
    assert pods[1].end(signal.SIGTERM) == names.EXIT_STOPPED
