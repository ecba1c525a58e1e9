"""Pods that get their index from the lead, as processes. A spare pod takes over a lost node."""

from __future__ import annotations

import signal

import pytest
from restarted_pods import PodJob
from waits import wait_for


@pytest.fixture
def make(tmp_path):
    jobs = []

    def start(script, **spec):
        jobs.append(PodJob(tmp_path, script, **spec))
        return jobs[-1]

    yield start
    for job in jobs:
        job.clear()


def start_workers(job, *uids):
    return [job.start("from-lead", uid) for uid in uids]


def test_every_pod_becomes_a_node(make):
    job = make("echo done", nodes=3)
    pods = [job.start(0, "head"), *start_workers(job, "a", "b")]
    for pod in pods:
        pod.idles()
    assert sorted(job.runs.read_text().split()) == ["0", "1", "2"]


def test_spare_replaces_a_killed_node(make, tmp_path):
    go = tmp_path / "go"
    job = make(f"until [ -e {go} ]; do sleep 0.02; done", nodes=3, node_restarts=3)
    head, first, second = job.start(0, "head"), *start_workers(job, "a", "b")
    wait_for(lambda: job.runs.exists() and job.num_runs() == 3, "the first attempt")
    [spare] = start_workers(job, "c")
    wait_for(lambda: spare.says("there are enough nodes"), "the spare waits")
    second.end(signal.SIGKILL)
    wait_for(lambda: job.num_runs() == 6, "the second attempt")
    go.touch()
    for pod in (head, first, spare):
        pod.idles()
    assert sorted(job.runs.read_text().split()) == ["0", "0", "1", "1", "2", "2"]


def test_spare_learns_that_the_job_has_ended(make):
    job = make("echo done", nodes=2)
    head, [node] = job.start(0, "head"), start_workers(job, "a")
    head.idles()
    node.idles()
    [spare] = start_workers(job, "b")
    spare.idles()
    assert job.num_runs() == 2
    assert spare.end(signal.SIGTERM) == 0
    spare.start().idles(times=2)


def test_spare_exits_on_sigterm(make, tmp_path):
    job = make(f"until [ -e {tmp_path / 'go'} ]; do sleep 0.02; done", nodes=2)
    job.start(0, "head")
    start_workers(job, "a")
    wait_for(lambda: job.runs.exists() and job.num_runs() == 2, "the attempt")
    [spare] = start_workers(job, "b")
    wait_for(lambda: spare.says("there are enough nodes"), "the spare waits")
    assert spare.end(signal.SIGTERM) == 143
