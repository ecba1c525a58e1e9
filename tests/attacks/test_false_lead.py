"""A false lead: a pod that says it is node 0 of a job. It is not used, and it hides nothing.

Anybody who may write pods can write labels, index and owner of a pod. Only pods that the job's own Job
controls are looked at, and only one that proves by TLS that it holds the job's key is the lead.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from pathlib import Path

import pytest
from kube.api_server import connect_to
from kube.fake_cluster import fake_cluster, make_fake_job, make_fake_pod
from kube.plans import make_pod_plan
from pod_connections import run_at_door
from tls_peers import JOB, connect_lead, until, write_certificates

from windlass.engines.cluster.cluster_job import ClusterJob
from windlass.engines.cluster.job_secret import make_certificates
from windlass.engines.cluster.lead_pods import LeadPods
from windlass.engines.cluster.lead_sync import LeadSync
from windlass.engines.dialects.kubernetes import KUBERNETES
from windlass.wire import tls
from windlass.wire.job_folder import JobFolder
from windlass.wire.last_word import render_last_word
from windlass.wire.status import Phase

PLAN = make_pod_plan(detach=True)
LEFT = {"exitCode": 0, "reason": "Completed", "finishedAt": "2026-01-31T12:00:00Z"}


class FalseLead:
    """Somebody who listens where a lead would; `says` is what each visitor meets."""

    def __init__(self, says) -> None:
        self._says = says
        self.num_visits = 0
        self._kept: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                visitor, _ = self._listener.accept()
                if self._listener.fileno() < 0:
                    return
                self.num_visits += 1
                self._kept.append(visitor)
                with contextlib.suppress(OSError):
                    self._says(visitor)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(20)
        for visitor in self._kept:
            visitor.close()


def say_nothing(_visitor: socket.socket) -> None:
    """Takes the connection, and never answers."""


def speak_plain(visitor: socket.socket) -> None:
    visitor.sendall(b"HTTP/1.1 200 OK\r\n\r\n")


def hang_up(visitor: socket.socket) -> None:
    visitor.close()


def speak_tls_of(folder: Path):
    """With a certificate of its own, which says the same of itself as the job's."""
    context = tls.server_context(write_certificates(folder, JOB))

    def speak(visitor: socket.socket) -> None:
        visitor.settimeout(20)
        context.wrap_socket(visitor, server_side=True).close()

    return speak


def make_pod(name: str, number: int) -> dict:
    at = f"2026-01-31T12:00:{number:02}Z"
    return {"metadata": {"name": name, "uid": name, "creationTimestamp": at}}


def run_among(tmp_path, false_ones, check):
    """A real lead, older than all the false ones, and a client's line that must find it."""

    async def run(scene):
        ports = {"true": scene.port, **{f"false-{n}": one.port for n, one in enumerate(false_ones)}}
        pods = [make_pod(name, number) for number, name in enumerate(ports)]
        leads = LeadPods(JOB, lambda: pods)

        def dial():
            return leads.reach(lambda pod: connect_lead(ports[pod], scene.files))

        folder = JobFolder(tmp_path / "client")
        folder.path.mkdir()
        line = LeadSync(JOB, folder, dial)
        try:
            await until(line.is_synced.is_set, "the lead's own status has come", 8.0)
            await check(scene, line)
        finally:
            line.close()

    try:
        run_at_door(tmp_path, run)
    finally:
        for one in false_ones:
            one.close()


@pytest.mark.parametrize("num_false", [1, 40])
@pytest.mark.parametrize("how", ["silent", "plain", "hangs up", "tls"])
def test_the_true_lead_is_found_among_false_ones(tmp_path, how, num_false):
    """Well before any one of them would have timed out: the deadline is shorter than a handshake's."""
    ways = {"silent": say_nothing, "plain": speak_plain, "hangs up": hang_up}
    says = ways[how] if how in ways else speak_tls_of(tmp_path / "other")

    async def check(_scene, line):
        assert line.is_up

    run_among(tmp_path, [FalseLead(says) for _ in range(num_false)], check)


def test_one_that_fails_the_jobs_tls_is_named_once_and_never_dialled_again(tmp_path, caplog):
    false_one = FalseLead(speak_tls_of(tmp_path / "other"))

    def read_told():
        return [r.getMessage() for r in caplog.records if "false-0" in r.getMessage()]

    async def check(scene, line):
        await until(read_told, "it is named")
        for _ in range(3):  # the line breaks, and is made anew
            for link in list(scene.lead_server._links):
                link._transport.abort()
            await until(lambda: not line.is_up, "the line is down")
            await until(lambda: line.is_up, "the line is up again")
        assert false_one.num_visits == 1

    run_among(tmp_path, [false_one], check)
    told = read_told()
    assert len(told) == 1
    assert "does not hold the job's key" in told[0]
    assert "kubectl describe pod false-0" in told[0]


@contextlib.contextmanager
def looking(tmp_path, *pods, logs=()):
    with fake_cluster() as cluster:
        cluster.objects = {"jobs": [make_fake_job(PLAN.job_id)], "pods": list(pods)}
        cluster.logs = dict(logs)
        folder = JobFolder(tmp_path / "job")
        folder.path.mkdir()
        (tmp_path / "config").mkdir()
        keys = make_certificates(PLAN.job_id, now_s=time.time(), valid_s=3600.0)
        api = connect_to(cluster.url, tmp_path / "config", retry_for_s=0.0)
        view = ClusterJob(api, KUBERNETES, PLAN, folder, keys)
        try:
            view.settle()
            yield cluster, view
        finally:
            view.close()


def make_foreign(name, **state):
    """With the job's labels and index; what controls it is another Job, or nothing."""
    pod = make_fake_pod(name, **state)
    pod["metadata"]["creationTimestamp"] = "2026-02-01T12:00:00Z"  # and newer
    del pod["metadata"]["ownerReferences"]
    return pod


@pytest.mark.parametrize(
    "owners",
    [
        [],
        [{"kind": "Job", "uid": "another", "controller": True}],
        [{"kind": "Job", "uid": "j"}],  # it owns it, and does not control it
    ],
)
def test_pods_that_the_job_does_not_control_are_neither_dialled_nor_read(tmp_path, owners):
    succeeded = json.dumps({"phase": "succeeded"}).encode()
    logs = {"left": render_last_word({"status.json": succeeded})}
    pods = [make_foreign("left", terminated=LEFT), make_foreign("runs", running={"startedAt": ""})]
    for pod in pods:
        pod["metadata"]["ownerReferences"] = owners
    with looking(tmp_path, *pods, logs=logs) as (cluster, view):
        assert view.status().phase is Phase.PENDING
        asked = [seen.path for seen in cluster.seen]
    assert not [path for path in asked if path.endswith(("/log", "/portforward"))]


@pytest.mark.long
def test_one_that_left_in_peace_does_not_end_a_job_whose_lead_runs(tmp_path):
    """Even if its owner is forged."""
    left = make_fake_pod("left", terminated=LEFT)
    left["metadata"]["creationTimestamp"] = "2026-02-01T12:00:00Z"
    true = make_fake_pod("true", running={"startedAt": "2026-01-31T12:00:00Z"})
    with looking(tmp_path, true, left) as (_, view):
        assert not view.status().phase.is_final
