"""Jobs on a cluster that end without a connected client: what remains, and how lost results are reported."""

from __future__ import annotations

import pytest
import rank_work as work
from waits import wait_for

import windlass as wl
from windlass import names
from windlass.kube.objects.kinds import PODS

pytestmark = [
    pytest.mark.cluster_only("a local job's folder stays"),
    pytest.mark.needs_can("ends"),
]
FOLDER = f"{names.JOB_FOLDER}/attempt-0"
HEADER = '{"rank":0,"attempt":0,"state":"returned","at_s":1.0}'


def submit_and_disconnect(on, shared, *target, **settings):
    """Submit a job, disconnect once it runs, and return its reference."""
    job = on.submit(*target, **settings)
    shared.wait_for("up")
    job._engine.let_go(job.ref)
    return str(job.ref)


def find_pods(on, ref):
    return on.space.api.list(PODS, labels=f"{names.LABEL_JOB}={ref.rpartition('/')[2]}")


def is_complete(on, ref):
    end = on.dialect.read_end(on.space.api.get(on.dialect.kind, ref.rpartition("/")[2]))
    return end is not None and end.is_complete


@pytest.mark.engine_matters
@pytest.mark.needs_right("delete", "pods")
def test_a_job_whose_pods_are_deleted_before_a_client_looks_has_ended(on, shared):
    ref = submit_and_disconnect(on, shared, work.return_bytes, (shared.path, 10))
    shared.touch("go")
    wait_for(lambda: is_complete(on, ref), "the Job is complete")
    for pod in find_pods(on, ref):
        on.space.api.delete(PODS, pod["metadata"]["name"], grace_s=0)
    wait_for(lambda: not find_pods(on, ref), "its pods are gone")
    job = wl.attach(ref)
    seen = {job.status().phase.value}
    status = job.wait(60)
    assert seen | {status.phase.value} <= {"stopping", "ended"}
    assert status.verdict.message == "it finished, but its outcome was lost with its pods"
    with pytest.raises(wl.EngineError, match="lost with its pods"):
        job.results()


def test_a_large_result_is_kept_for_a_later_client(on, shared):
    """The result is too large for a pod's log."""
    ref = submit_and_disconnect(on, shared, work.return_bytes, (shared.path, 5 << 20))
    shared.touch("go")
    assert wl.attach(ref).results(timeout_s=120) == [b"v" * (5 << 20)]


def test_a_result_larger_than_memory_does_not_run_the_job_again(on, shared):
    script = f"""
import os, pathlib, time
pathlib.Path("{shared.path}/up").touch()
while not os.path.exists("{shared.path}/go"):
    time.sleep(0.05)
result = pathlib.Path("{FOLDER}/rank-0.result")
result.write_text({HEADER!r} + chr(10))
os.truncate(result, 64 << 30)
"""
    ref = submit_and_disconnect(on, shared, ["python3", "-c", script], lease_s=1, memory="300Mi")
    shared.touch("go")
    wait_for(lambda: is_complete(on, ref), "the Job is complete")
    [pod] = find_pods(on, ref)
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    status = wl.attach(ref).status()
    assert status.phase.value == "succeeded", status.verdict
