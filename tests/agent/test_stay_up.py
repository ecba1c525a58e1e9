"""Pods of a kind that restarts its containers whenever they exit.

An agent whose job has ended stays, and stays again after its container was restarted. The lead continues to
answer clients.
"""

from __future__ import annotations

import json
import signal
import socket

import pytest
from restarted_pods import Pod, PodJob
from waits import wait_for

from windlass.wire.last_word import read_last_word


@pytest.fixture
def make(tmp_path):
    jobs = []

    def start(script="echo done", **spec):
        jobs.append(PodJob(tmp_path, script, **spec))
        return jobs[-1]

    yield start
    for job in jobs:
        job.clear()


def test_agent_exits_without_stays_up(make):
    pod = make().start(0, stays_up=False)
    assert pod.process.wait(60) == 0


def test_every_pod_stays_until_sigterm(make):
    job = make(nodes=2)
    pods = [job.start(0), job.start(1)]
    for pod in pods:
        pod.idles()
    assert job.num_runs() == 2
    assert [pod.end(signal.SIGTERM) for pod in pods] == [0, 0]


def test_restarted_container_runs_nothing(make):
    job = make(nodes=2)
    pods = [job.start(0), job.start(1)]
    for pod in pods:
        pod.idles()
    for pod in pods:
        pod.end(signal.SIGKILL)
        pod.start().idles(times=2)
    assert job.num_runs() == 2
    assert [pod.end(signal.SIGTERM) for pod in pods] == [0, 0]


def test_failed_job_is_not_run_again(make):
    job = make("exit 3")
    pod = job.start(0)
    pod.idles()
    pod.end(signal.SIGKILL)
    pod.start().idles(times=2)
    assert job.num_runs() == 1


def test_lead_writes_its_last_word_and_continues_to_answer(make):
    job = make("echo one")
    pod = job.start(0)
    pod.idles()
    assert json.loads(read_last_word(pod.log.read_bytes()).files["status.json"])["phase"] == (
        "succeeded"
    )
    for name in ("first", "second"):
        folder = job.read(name)
        assert json.loads(folder.status.read_bytes())["phase"] == "succeeded"
        assert folder.log(0, 0).read_bytes().endswith(b" one\n")
    pod.end(signal.SIGKILL)
    pod.start().idles(times=2)
    assert job.read("third").log(0, 0).read_bytes().endswith(b" one\n")


def test_clients_are_answered_until_the_time_to_live_ends(make):
    job = make(pod={"ttl_s": 0.0})
    pod = job.start(0)
    pod.idles()
    wait_for(lambda: pod.says("no longer answering clients"), "its time to live is over")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", job.port), timeout=20)
    assert pod.end(signal.SIGTERM) == 0


def test_pod_that_joins_after_the_end_runs_nothing(make):
    job = make(nodes=2)
    lead, node = job.start(0), job.start(1)
    lead.idles()
    node.idles()
    assert node.end(signal.SIGTERM) == 0
    job.start(1, uid="uid-2").idles()
    assert job.num_runs() == 2


def test_container_killed_before_the_end_joins_as_a_new_agent(make, tmp_path):
    """The job folder exists already, and the interrupted attempt counts as a lost node."""
    go = tmp_path / "go"
    job = make(f"until [ -e {go} ]; do sleep 0.02; done", node_restarts=3)
    pod = job.start(0)
    wait_for(lambda: job.runs.exists(), "the rank runs")
    pod.end(signal.SIGKILL)
    pod.start()
    wait_for(lambda: job.num_runs() == 2, "the rank runs again")
    go.touch()
    pod.idles()
    status = json.loads(pod.folder.status.read_bytes())
    assert (status["phase"], status["attempt"]) == ("succeeded", 1)


def test_lead_killed_after_its_last_status_runs_nothing_again(make):
    job = make()
    pod = job.start(0)
    pod.idles()
    pod.end(signal.SIGKILL)
    (pod.folder.path / "ended").unlink()
    pod.start().idles(times=2)
    assert job.num_runs() == 1


def test_pod_with_a_malformed_index_reports_it(make):
    job = make()
    pod = Pod(job, "x")
    job.pods.append(pod)
    assert pod.start().process.wait(60) == 1
    assert pod.says("WINDLASS_NODE_INDEX must be a whole number, not 'x'")
