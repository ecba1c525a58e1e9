"""Pods whose kind starts containers again whenever they exit: an agent whose job has ended stays, and once
more after its container was started anew; the lead goes on answering clients.
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


def test_without_it_an_agent_exits(make):
    pod = make().start(0, stays_up=False)
    assert pod.process.wait(60) == 0


def test_every_pod_stays_and_ends_when_it_is_told(make):
    job = make(nodes=2)
    pods = [job.start(0), job.start(1)]
    for pod in pods:
        pod.idles()
    assert job.num_runs() == 2
    assert [pod.end(signal.SIGTERM) for pod in pods] == [0, 0]


def test_a_container_that_is_started_again_starts_nothing(make):
    job = make(nodes=2)
    pods = [job.start(0), job.start(1)]
    for pod in pods:
        pod.idles()
    for pod in pods:
        pod.end(signal.SIGKILL)
        pod.start().idles(times=2)
    assert job.num_runs() == 2
    assert [pod.end(signal.SIGTERM) for pod in pods] == [0, 0]


def test_a_failed_job_has_ended_too(make):
    job = make("exit 3")
    pod = job.start(0)
    pod.idles()
    pod.end(signal.SIGKILL)
    pod.start().idles(times=2)
    assert job.num_runs() == 1


def test_the_lead_leaves_its_last_word_and_goes_on_answering(make):
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
    wait_for(lambda: pod.says("no longer answering clients"), "its time has ended")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", job.port), timeout=20)
    assert pod.end(signal.SIGTERM) == 0


def test_a_pod_that_comes_after_the_end_is_told_of_it(make):
    job = make(nodes=2)
    lead, node = job.start(0), job.start(1)
    lead.idles()
    node.idles()
    assert node.end(signal.SIGTERM) == 0
    job.start(1, uid="uid-2").idles()
    assert job.num_runs() == 2


def test_a_container_that_is_killed_before_the_end_joins_again_as_another_agent(make, tmp_path):
    """The folder is there already; the attempt that was cut short counts as a lost node."""
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


def test_a_lead_that_was_killed_right_after_its_last_status_runs_nothing_again(make):
    job = make()
    pod = job.start(0)
    pod.idles()
    pod.end(signal.SIGKILL)
    (pod.folder.path / "ended").unlink()
    pod.start().idles(times=2)
    assert job.num_runs() == 1


def test_a_pod_that_cannot_know_its_place_says_so(make):
    job = make()
    pod = Pod(job, "x")
    job.pods.append(pod)
    assert pod.start().process.wait(60) == 1
    assert pod.says("WINDLASS_NODE_INDEX is 'x'")
