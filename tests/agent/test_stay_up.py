"""Pods whose kind starts containers again whenever they exit: an agent whose job has ended stays, and once
more after its container was started anew; the lead goes on answering clients.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from pod_places import make_job
from tls_peers import JOB, write_certificates
from waits import wait_for

from windlass.engines.lead_sync import LeadSync
from windlass.engines.pyz import local_archive
from windlass.plan.plan import render_plan
from windlass.spec.pod_spec import PodSpec
from windlass.spec.work import Command
from windlass.wire.job_folder import JobFolder
from windlass.wire.last_word import read_last_word

CONTAINER = Path(__file__).parents[1] / "pod_container.py"


class Pod:
    """One pod of a StatefulSet: a folder of its own, and one container after another."""

    def __init__(self, job, index, uid="uid-1"):
        self.job, self.index, self.uid = job, index, uid
        self.folder = JobFolder(job.tmp_path / f"pod-{index}-{uid}")
        self.folder.path.mkdir()
        self.log = job.tmp_path / f"log-{index}-{uid}"
        self.process = None

    def start(self, *, stays_up=True):
        """A container of this pod."""
        about = {
            "secret": str(self.job.secret),
            "folder": str(self.folder.path),
            "port": self.job.port,
            "message": str(self.job.tmp_path / f"message-{self.index}"),
            "archive": str(local_archive()),
        }
        env = {
            **os.environ,
            "WINDLASS_LEAD": "127.0.0.1",
            "WINDLASS_POD_IP": "127.0.0.1",
            "WINDLASS_POD_UID": self.uid,
            "WINDLASS_NODE_INDEX": str(self.index),
            "WINDLASS_STAYS_UP": "1" if stays_up else "",
        }
        with self.log.open("ab") as log, self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, CONTAINER, json.dumps(about)], env=env, stdout=log, stderr=errors
            )
        return self

    @property
    def errors(self):
        return self.log.with_name(f"{self.log.name}-errors")

    def says(self, text, times=1):
        return self.errors.read_text().count(text) >= times

    def idles(self, times=1):
        wait_for(lambda: self.says("this pod stays", times), f"node {self.index} idles")
        assert self.process.poll() is None

    def end(self, signum):
        self.process.send_signal(signum)
        return self.process.wait(20)


class Job:
    """A job of a few pods, whose ranks append a line to a file."""

    def __init__(self, tmp_path, script, **spec):
        self.tmp_path = tmp_path
        self.runs = tmp_path / "runs"
        self.secret = write_certificates(tmp_path / "secret")
        work = Command(argv=("sh", "-c", f"echo $RANK >> {self.runs}; {script}"))
        pod = PodSpec(image="none", **spec.pop("pod", {}))
        self.plan = make_job(**{"nodes": 1, "work": work, "pod": pod, **spec})
        (self.secret / "plan.json").write_text(render_plan(self.plan))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.pods = []

    def start(self, index, uid="uid-1", **about):
        self.pods.append(Pod(self, index, uid))
        return self.pods[-1].start(**about)

    def num_runs(self):
        return len(self.runs.read_text().splitlines())

    def read(self, name):
        """What a client of this job has got, once the status it got is final."""
        folder = JobFolder(self.tmp_path / name)
        folder.path.mkdir()
        files = {path.name: path.read_bytes() for path in self.secret.iterdir()}
        line = LeadSync(JOB, folder, files, self.dial)
        line.finish()
        wait_for(lambda: line._has_last, "the last status has come")
        line.close()
        return folder

    def dial(self, secure):
        return secure(socket.create_connection(("127.0.0.1", self.port), timeout=20))


@pytest.fixture
def make(tmp_path):
    jobs = []

    def start(script="echo done", **spec):
        jobs.append(Job(tmp_path, script, **spec))
        return jobs[-1]

    yield start
    for pod in [pod for job in jobs for pod in job.pods]:
        pod.process.kill()
        pod.process.wait(20)
        print(pod.errors.read_text())


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
    wait_for(lambda: pod.says("clients are not answered any more"), "its time has ended")
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
