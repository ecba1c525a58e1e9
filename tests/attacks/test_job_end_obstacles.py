"""Obstacles at the end of a job: nothing is lost, no outcome is invented, and no client hangs.

Covers an unreadable status and an unavailable API server. Also covers a node that sends its ranks' files for
longer than the allowed silence.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import contextmanager

import pytest
from kube.api_server import connect_to
from kube.fake_cluster import fake_cluster, make_fake_job, make_fake_pod
from kube.plans import make_pod_plan
from pod_connections import make_job, put, run_lead_server, send
from tls_peers import until
from waits import wait_for

from windlass import names, records
from windlass.agent.lead.jobs import job_lead
from windlass.engines.cluster.cluster_job import ClusterJob
from windlass.engines.cluster.job_secret import make_certificates
from windlass.engines.dialects.kubernetes import KUBERNETES
from windlass.engines.finished_jobs import read_outcomes
from windlass.spec.work import Function
from windlass.wire.job_folder import JobFolder
from windlass.wire.last_word import render_last_word
from windlass.wire.messages.jobs import NODE_TO_LEAD
from windlass.wire.results import ResultHeader
from windlass.wire.status import FailureKind, Phase, make_first_status, render_status

PLAN = make_pod_plan(detach=True)
COMPLETE = {"type": "Complete"}
LEFT = {"exitCode": 0, "reason": "Completed", "finishedAt": "2026-01-31T12:00:00Z"}
ENDED = render_status(make_first_status(PLAN)).replace(b'"pending"', b'"succeeded"', 1)


@contextmanager
def observe_job(cluster, tmp_path):
    folder = JobFolder(tmp_path / "job")
    folder.path.mkdir(exist_ok=True)
    (tmp_path / "config").mkdir(exist_ok=True)
    keys = make_certificates(PLAN.job_id, now_s=time.time(), valid_s=3600.0)
    view = ClusterJob(
        connect_to(cluster.url, tmp_path / "config", retry_for_s=0.0),
        KUBERNETES,
        PLAN,
        folder,
        keys,
    )
    try:
        view.settle()
        yield view
    finally:
        view.close()


def put_ended(cluster):
    pod = make_fake_pod("pod-0", terminated=LEFT)
    cluster.objects = {"jobs": [make_fake_job(PLAN.job_id, COMPLETE)], "pods": [pod]}


@pytest.mark.parametrize(
    "status",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b'{"phase": "succeeded"}',
        b'{"phase": 7}',
        ENDED.replace(b'"succeeded"', b'"wonderful"', 1),
        ENDED[: len(ENDED) // 2],
        b"[" * 100_000,
    ],
)
def test_unreadable_status_at_the_end_is_an_unknown_outcome(tmp_path, status):
    """The job neither succeeded nor failed, and a status that becomes readable later counts."""
    with fake_cluster() as cluster:
        put_ended(cluster)
        cluster.logs["pod-0"] = render_last_word({names.STATUS_FILE: status})
        with observe_job(cluster, tmp_path) as view:
            found = view.status()
            assert (found.phase, found.verdict.kind) == (Phase.ENDED, FailureKind.UNKNOWN)
        cluster.logs["pod-0"] = render_last_word({names.STATUS_FILE: ENDED})
        with observe_job(cluster, tmp_path) as view:
            assert view.status().phase is Phase.SUCCEEDED


def test_unavailable_api_server_hides_no_outcome(tmp_path):
    """The job has no final phase during the outage. Afterwards it has its true outcome."""
    with fake_cluster() as cluster:
        running = make_fake_pod("pod-0", running={"startedAt": "2026-01-31T12:00:00Z"})
        cluster.objects = {"jobs": [make_fake_job(PLAN.job_id)], "pods": [running]}
        with observe_job(cluster, tmp_path) as view:
            assert not view.status().phase.is_final
            cluster.go_away()
            wait_for(lambda: view._observe().api_error is not None, "it is noticed")
            for _ in range(20):
                assert not view.status().phase.is_final
            put_ended(cluster)  # during the outage
            cluster.version += 1
            cluster.logs["pod-0"] = render_last_word({names.STATUS_FILE: ENDED})
            cluster.is_away = False
            wait_for(lambda: view.status().phase.is_final, "the job has ended", 60.0)
            assert view.status().phase is Phase.SUCCEEDED


def make_result(rank, size):
    header = ResultHeader(rank=rank, attempt=0, state="returned", at_s=1.0)
    return json.dumps(records.to_json(header)).encode() + b"\n" + b"v" * size


@pytest.mark.long
@pytest.mark.parametrize("num_silences", [2, 5])
def test_lead_waits_for_a_follower_that_flushes_slowly(tmp_path, monkeypatch, num_silences):
    """The flush takes longer than the longest allowed silence, which is 60 s and shorter here."""
    assert job_lead._STALL_S == 60.0
    monkeypatch.setattr(job_lead, "_STALL_S", 1.0)
    data = make_result(1, 4000)

    async def visit(scene):
        leading = asyncio.ensure_future(scene.lead.run())
        peer = await scene.join(1)
        await until(lambda: scene.orders and peer.find("start"), "the start")
        put(scene.folder, "attempt-0/rank-0.result", make_result(0, 1))
        for rank in (0, 1):
            outcome = {"rank": rank, "attempt": 0, "state": "returned", "at_s": 1.0}
            message = {"type": "outcome", "outcome": outcome, "exited": True}
            scene.lead.receive(0, NODE_TO_LEAD.read(message)) if rank == 0 else peer.link.send(
                message
            )
        await until(lambda: peer.find("flush"), "the order to flush")
        scene.lead.receive(0, NODE_TO_LEAD.read({"type": "flushed"}))
        started_s = time.monotonic()
        offset = 0
        while time.monotonic() - started_s < num_silences * 1.0:
            piece = data[offset : offset + 50]
            send(peer, "attempt-0/rank-1.result", piece, offset=offset, total_bytes=len(data))
            offset += len(piece)
            await asyncio.sleep(0.1)
            assert not leading.done(), "it was given up while it sent"
        send(peer, "attempt-0/rank-1.result", data[offset:], offset=offset, total_bytes=len(data))
        peer.say("flushed")
        await asyncio.wait_for(leading, 20)
        found = read_outcomes(
            scene.folder, scene.plan, scene.status_writer.status, with_values=True
        )
        assert [len(left[1]) for left in found] == [1, 4000]

    run_lead_server(tmp_path, visit, make_job(nodes=2, work=Function(name="train")))
