"""Attack: a false lead, which is a pod that claims to be node 0 of a job.

Any user who may write pods can set a pod's labels, index and owner. Clients only look at pods that the job's
own Job controls. The lead is the one that proves by TLS that it holds the job's key. A false lead is not
used, and it does not hide the true one.
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
from pod_connections import run_lead_server
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
    """Server at a lead's place. Calls `says` with each connection."""

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
    """Never answer an accepted connection."""


def speak_plain(visitor: socket.socket) -> None:
    visitor.sendall(b"HTTP/1.1 200 OK\r\n\r\n")


def hang_up(visitor: socket.socket) -> None:
    visitor.close()


def speak_tls_of(folder: Path):
    """Return a handler with a certificate of its own, made like the job's."""
    context = tls.server_context(write_certificates(folder, JOB))

    def speak(visitor: socket.socket) -> None:
        visitor.settimeout(20)
        context.wrap_socket(visitor, server_side=True).close()

    return speak


def make_pod(name: str, number: int) -> dict:
    at = f"2026-01-31T12:00:{number:02}Z"
    return {"metadata": {"name": name, "uid": name, "creationTimestamp": at}}


def run_among(tmp_path, false_ones, check):
    """Run a real lead that is older than all false ones, and a client that must find it."""

    async def run(scene):
        ports = {"true": scene.port, **{f"false-{n}": one.port for n, one in enumerate(false_ones)}}
        pods = [make_pod(name, number) for number, name in enumerate(ports)]
        leads = LeadPods(JOB, lambda: pods)

        def dial():
            return leads.reach(lambda pod: connect_lead(ports[pod], scene.files))

        folder = JobFolder(tmp_path / "client")
        folder.path.mkdir()
        sync = LeadSync(JOB, folder, dial)
        try:
            await until(sync.is_synced.is_set, "the lead's own status has come", 8.0)
            await check(scene, sync)
        finally:
            sync.close()

    try:
        run_lead_server(tmp_path, run)
    finally:
        for one in false_ones:
            one.close()


@pytest.mark.parametrize("num_false", [1, 40])
@pytest.mark.parametrize("how", ["silent", "plain", "hangs up", "tls"])
def test_true_lead_is_found_among_false_ones(tmp_path, how, num_false):
    """The deadline is shorter than a handshake timeout, so no false lead may delay the search."""
    ways = {"silent": say_nothing, "plain": speak_plain, "hangs up": hang_up}
    says = ways[how] if how in ways else speak_tls_of(tmp_path / "other")

    async def check(_scene, sync):
        assert sync.is_up

    run_among(tmp_path, [FalseLead(says) for _ in range(num_false)], check)


def test_lead_that_fails_tls_is_reported_once_and_not_dialed_again(tmp_path, caplog):
    false_one = FalseLead(speak_tls_of(tmp_path / "other"))

    def read_reports():
        return [r.getMessage() for r in caplog.records if "false-0" in r.getMessage()]

    async def check(scene, sync):
        await until(read_reports, "it is reported")
        for _ in range(3):  # the connection breaks and is reopened
            for link in list(scene.lead_server._links):
                link._transport.abort()
            await until(lambda: not sync.is_up, "the connection is down")
            await until(lambda: sync.is_up, "the connection is up again")
        assert false_one.num_visits == 1

    run_among(tmp_path, [false_one], check)
    reports = read_reports()
    assert len(reports) == 1
    assert "does not have the job's key" in reports[0]
    assert "kubectl describe pod false-0" in reports[0]


@contextlib.contextmanager
def observe_job(tmp_path, *pods, logs=()):
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
    """Return a newer pod with the job's labels and index that no Job controls."""
    pod = make_fake_pod(name, **state)
    pod["metadata"]["creationTimestamp"] = "2026-02-01T12:00:00Z"  # newer than the job's own
    del pod["metadata"]["ownerReferences"]
    return pod


@pytest.mark.parametrize(
    "owners",
    [
        [],
        [{"kind": "Job", "uid": "another", "controller": True}],
        [{"kind": "Job", "uid": "j"}],  # it owns the pod but does not control it
    ],
)
def test_pods_that_the_job_does_not_control_are_ignored(tmp_path, owners):
    succeeded = json.dumps({"phase": "succeeded"}).encode()
    logs = {"left": render_last_word({"status.json": succeeded})}
    pods = [make_foreign("left", terminated=LEFT), make_foreign("runs", running={"startedAt": ""})]
    for pod in pods:
        pod["metadata"]["ownerReferences"] = owners
    with observe_job(tmp_path, *pods, logs=logs) as (cluster, view):
        assert view.status().phase is Phase.PENDING
        asked = [seen.path for seen in cluster.seen]
    assert not [path for path in asked if path.endswith(("/log", "/portforward"))]


@pytest.mark.long
def test_completed_newer_pod_does_not_end_a_running_job(tmp_path):
    """This also holds for a pod with a forged owner."""
    left = make_fake_pod("left", terminated=LEFT)
    left["metadata"]["creationTimestamp"] = "2026-02-01T12:00:00Z"
    true = make_fake_pod("true", running={"startedAt": "2026-01-31T12:00:00Z"})
    with observe_job(tmp_path, true, left) as (_, view):
        assert not view.status().phase.is_final
