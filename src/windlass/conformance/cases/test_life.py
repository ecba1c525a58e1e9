"""A job's life: restarts, time limits, cancelling, detaching, attaching, and a complete cleanup."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys

import pytest
import rank_work as work
from waits import wait_for

import windlass as wl
from windlass.waiting import wait_until


@pytest.mark.engine_matters
def test_restart_starts_every_rank_again(on, shared):
    assert on.run(work.fail_once, (shared.path,), nodes=2, procs=2, restarts=1) == [1, 1, 1, 1]
    assert shared.names() == {f"{a}-{r}" for a in (0, 1) for r in range(4)}
    status = wl.jobs()[0].status()
    assert status.attempt == 1
    assert [verdict.rank for verdict in status.history] == [1]
    assert status.verdict is None


@pytest.mark.engine_matters
def test_restarts_run_out(on):
    job = on.fail(work.fail, ("raise",), {"hang": False}, procs=2, restarts=2)
    status = job.status()
    assert (status.attempt, len(status.history), status.verdict.attempt) == (2, 2, 2)


def test_a_restart_finds_no_process_of_the_attempt_before(on):
    mark = f"{600 + random.random()}"
    assert on.run(work.spawn_children_and_fail_once, (mark,), nodes=2, restarts=1) == [[], []]


@pytest.mark.engine_matters
def test_time_limit(on):
    job = on.fail(work.hang, procs=2, timeout_s=0.3)
    assert job.verdict().kind.value == "timeout"
    assert "time limit of 0.3 s" in job.verdict().message
    with pytest.raises(wl.JobTimeout):
        job.results()


@pytest.mark.engine_matters
def test_cancel_kills_every_descendant(on, shared):
    job = on.submit(work.spawn_children_and_hang, (f"{shared.path}/flag",), nodes=2, procs=2)
    shared.wait_for("flag-0", "flag-1", "flag-2", "flag-3")
    job.cancel(why="enough")
    status = job.wait(60)
    assert status.phase.value == "cancelled"
    assert status.verdict.message == "enough"
    job.cancel()  # a second call changes nothing
    with pytest.raises(wl.JobCancelled):
        job.result()


def test_cancel_lets_ranks_save(on, shared):
    job = on.submit(work.save_on_term, (f"{shared.path}/flag", f"{shared.path}/saved"))
    shared.wait_for("flag")
    job.cancel()
    job.wait(60)
    assert shared.read("saved") == "saved"


def test_a_stubborn_rank_is_killed_after_the_grace(on, shared):
    job = on.submit(work.stubborn, (f"{shared.path}/flag",), grace_s=0.2)
    shared.wait_for("flag")
    job.cancel()
    assert job.wait(60).phase.value == "cancelled"


def test_cancel_now_does_not_wait(on, shared):
    job = on.submit(work.stubborn, (f"{shared.path}/flag",), grace_s=600)
    shared.wait_for("flag")
    job.cancel()
    wait_for(lambda: job.status().phase.value == "stopping", "it is stopping")
    job.cancel(now=True)
    assert job.wait(60).phase.value == "cancelled"


@pytest.mark.engine_matters
def test_cancel_before_anything_runs(on):
    job = on.submit(work.hang, nodes=2)
    job.cancel()
    assert job.wait(60).phase.value == "cancelled"


@pytest.mark.engine_matters
def test_attach_by_reference_id_prefix_and_name(on):
    job = on.submit(work.rank, procs=2, name="my job")
    for how in (str(job.ref), job.id, job.id[:-1], "my job"):
        assert wl.attach(how).results() == [0, 1]
    assert job.id in [found.id for found in wl.jobs()]
    with pytest.raises(wl.JobNotFound, match="job 'nope' not found"):
        wl.attach("nope")
    job.remove()
    assert wl.jobs() == []


@pytest.mark.long
@pytest.mark.engine_matters
@pytest.mark.needs_right("list", "secrets")
@pytest.mark.needs_right("list", "services")
def test_nothing_is_left_of_a_job_that_was_cancelled_or_removed(on, shared):
    job = on.submit(work.stubborn, (f"{shared.path}/flag",), nodes=2, name="cancelled")
    shared.wait_for("flag")
    assert on.find_remains(job)
    job.cancel(now=True)
    assert job.wait(30).phase.value == "cancelled"
    assert wait_until(lambda: not on.find_remains(job), timeout_s=60, every_s=0.2), on.find_remains(
        job
    )
    job.remove()
    job = on.submit(work.rank, nodes=2, name="removed")
    assert job.results() == [0, 1]
    job.remove()
    assert wait_until(lambda: not on.find_remains(job), timeout_s=60, every_s=0.2), on.find_remains(
        job
    )
    assert wl.jobs() == []


def test_wait_has_a_deadline_and_the_job_continues(on):
    job = on.submit(work.hang)
    with pytest.raises(wl.WaitTimeout, match="still"):
        job.wait(0.1)
    assert not job.done()
    with pytest.raises(wl.SpecError, match="is still"):
        job.remove()


CLIENT = """
import sys, windlass as wl, rank_work as work
kind, flag, engine = sys.argv[1:]
if kind == "attached":
    wl.run(work.stubborn, (flag,), engine=engine, lease_s=0.3, grace_s=0.2)
else:
    print(wl.submit(work.wait_and_return, (flag,), engine=engine).ref, flush=True)
    work.hang()
"""


def _client(on, kind: str, flag: str) -> subprocess.Popen[str]:
    here = os.pathsep.join([os.path.dirname(work.__file__), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", CLIENT, kind, flag, on.engine],
        env={**os.environ, "PYTHONPATH": here},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.engine_matters
def test_an_attached_job_ends_after_its_client_is_killed(on, shared):
    with _client(on, "attached", f"{shared.path}/flag") as client:
        assert any("stubborn" in line for line in client.stdout)  # the client holds the lease
        client.send_signal(signal.SIGKILL)
    [job] = wl.jobs()
    status = job.wait(60)
    assert status.phase.value == "cancelled"
    assert "its client has been gone for 0.3 s" in status.verdict.message


@pytest.mark.engine_matters
def test_a_detached_job_outlives_its_client(on, shared):
    with _client(on, "detached", f"{shared.path}/flag") as client:
        ref = client.stdout.readline().strip()
        client.send_signal(signal.SIGKILL)
    job = wl.attach(ref)
    assert not job.done()
    shared.touch("flag")
    assert job.results() == ["done"]


@pytest.mark.local_only("the agent of a pod cannot be stopped by its own ranks")
def test_the_last_report_is_kept_if_it_is_read_late(on):
    job = on.submit(work.report_to_a_sleeping_agent)
    job.wait(60)
    assert job.status().progress.step == 7


@pytest.mark.engine_matters
def test_progress_is_reported(on, shared):
    job = on.submit(work.report_steps, (20, f"{shared.path}/flag"), procs=2)
    wait_for(
        lambda: [rank.step for rank in job.status().ranks] == [20, 20],
        "both have reported the last step",
    )
    progress = job.status().progress
    assert (progress.step, progress.total) == (20, 20)
    assert progress.metrics["loss"] == pytest.approx(0.05)
    assert progress.metrics["bad"] == "nan"
    shared.touch("flag")
    job.wait(60)
    names = [moment.name for moment in job.status().timeline]
    assert names[0] == "submitted"
    assert set(names) == {
        "submitted", "agent up", "nodes joined", "imports done", "ranks running", "first step",
        *on.own_moments,
    }  # fmt: skip
    assert [m.at_s for m in job.status().timeline] == sorted(m.at_s for m in job.status().timeline)
