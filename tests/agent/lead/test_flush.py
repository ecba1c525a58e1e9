"""End of an attempt: the lead waits while nodes still send data, and reports missing results."""

from __future__ import annotations

import asyncio
import json

import pytest
from pod_connections import make_job, put, run_lead_server, send
from tls_peers import until

from windlass import records
from windlass.agent.lead.jobs import job_lead
from windlass.engines.finished_jobs import read_outcomes
from windlass.spec.work import Function
from windlass.wire.messages.jobs import NODE_TO_LEAD
from windlass.wire.results import MISSING, ResultHeader
from windlass.wire.status import Phase

WORK = Function(name="train")
PATH = "attempt-0/rank-{}.result"


def make_result(rank):
    header = ResultHeader(rank=rank, attempt=0, state="returned", at_s=1.0)
    return json.dumps(records.to_json(header)).encode() + b"\nvalue of %d" % rank


async def run_ranks(scene, *peers):
    """Let all ranks return. Only node 0's results are at the lead."""
    await until(lambda: scene.orders and all(peer.find("start") for peer in peers), "the start")
    put(scene.folder, PATH.format(0), make_result(0))
    for rank in range(len(peers) + 1):
        outcome = {"rank": rank, "attempt": 0, "state": "returned", "at_s": 1.0}
        message = {"type": "outcome", "outcome": outcome, "exited": True}
        scene.lead.receive(0, NODE_TO_LEAD.read(message)) if rank == 0 else peers[
            rank - 1
        ].link.send(message)
    await until(lambda: all(peer.find("flush") for peer in peers), "the order to flush")
    scene.lead.receive(0, NODE_TO_LEAD.read({"type": "flushed"}))


def read(scene):
    return read_outcomes(scene.folder, scene.plan, scene.status_writer.status, with_values=True)


def warnings(scene):
    return [c.message for c in scene.status_writer.status.conditions if c.type == "warning"]


def test_a_slow_node_is_waited_for_while_it_sends(tmp_path, monkeypatch):
    """The flush takes longer than the allowed silence, because it has many pieces."""
    monkeypatch.setattr(job_lead, "_STALL_S", 1.5)

    async def visit(scene):
        leading = asyncio.ensure_future(scene.lead.run())
        peer = await scene.join(1)
        await run_ranks(scene, peer)
        data = make_result(1)
        for offset in range(0, len(data), 8):
            piece = data[offset : offset + 8]
            send(peer, PATH.format(1), piece, offset=offset, total_bytes=len(data))
            await asyncio.sleep(0.15)
        assert not leading.done()
        peer.say("flushed")
        await asyncio.wait_for(leading, 20)
        assert [left[1] for left in read(scene)] == [b"value of 0", b"value of 1"]
        assert warnings(scene) == []

    run_lead_server(tmp_path, visit, make_job(nodes=2, work=WORK))


@pytest.mark.parametrize("procs", [1, 2])
def test_silent_node_is_named_with_its_ranks(tmp_path, monkeypatch, procs):
    monkeypatch.setattr(job_lead, "_STALL_S", 0.2)

    async def visit(scene):
        leading = asyncio.ensure_future(scene.lead.run())
        peer = await scene.join(1)
        await until(lambda: scene.orders and peer.find("start"), "the start")
        for rank in range(2 * procs):
            outcome = {"rank": rank, "attempt": 0, "state": "returned", "at_s": 1.0}
            scene.lead.receive(
                rank // procs,
                NODE_TO_LEAD.read({"type": "outcome", "outcome": outcome, "exited": True}),
            )
            if rank < procs:
                put(scene.folder, PATH.format(rank), make_result(rank))
        await until(lambda: peer.find("flush"), "the order to flush")
        scene.lead.receive(0, NODE_TO_LEAD.read({"type": "flushed"}))
        await asyncio.wait_for(leading, 20)
        assert scene.status_writer.status.phase is Phase.SUCCEEDED
        ranks = "rank 1" if procs == 1 else "ranks 2, 3"
        [message] = warnings(scene)
        assert message.startswith(f"the result of {ranks} is missing: ")
        assert message.endswith("node-1 sent nothing more for 0.2 s before sending it")
        found = read(scene)
        assert [left[0].state for left in found] == ["returned"] * procs + [MISSING] * procs
        for rank in range(procs, 2 * procs):
            assert f"the result of rank {rank} is missing" in found[rank][0].error.message

    run_lead_server(tmp_path, visit, make_job(nodes=2, procs=procs, work=WORK))


def test_reconnected_node_sends_its_result(tmp_path):
    async def visit(scene):
        leading = asyncio.ensure_future(scene.lead.run())
        peer = await scene.join(1)
        await run_ranks(scene, peer)
        peer.link._transport.abort()
        await until(lambda: scene.state(1) == "lost", "node 1 is lost")
        assert not leading.done()
        again = await scene.join(1)
        await until(lambda: again.find("flush"), "the order to flush is repeated")
        data = make_result(1)
        send(again, PATH.format(1), data, total_bytes=len(data))
        again.say("flushed")
        await asyncio.wait_for(leading, 20)
        assert [left[1] for left in read(scene)] == [b"value of 0", b"value of 1"]
        assert warnings(scene) == []

    run_lead_server(tmp_path, visit, make_job(nodes=2, work=WORK))


def test_missing_result_of_a_replaced_node_is_reported(tmp_path):
    async def visit(scene):
        leading = asyncio.ensure_future(scene.lead.run())
        peer = await scene.join(1)
        await run_ranks(scene, peer)
        peer.link._transport.abort()
        await until(lambda: scene.state(1) == "lost", "node 1 is lost")
        again = await scene.join(1)
        await until(lambda: again.find("flush"), "the order to flush")
        again.say("flushed")
        await asyncio.wait_for(leading, 20)
        # an ended attempt is not run again
        assert scene.status_writer.status.phase is Phase.SUCCEEDED
        assert "the result of rank 1 is missing" in warnings(scene)[0]
        assert [left[0].state for left in read(scene)] == ["returned", MISSING]

    run_lead_server(tmp_path, visit, make_job(nodes=2, work=WORK))


def test_unreadable_result_is_reported(tmp_path):
    async def visit(scene):
        leading = asyncio.ensure_future(scene.lead.run())
        peer = await scene.join(1)
        await run_ranks(scene, peer)
        message = "node-1 could not send attempt-0/rank-1.result: Input/output error"
        peer.say("trouble", reason="ResultMissing", message=message)
        peer.say("flushed")
        await asyncio.wait_for(leading, 20)
        assert "Input/output error" in read(scene)[1][0].error.message

    run_lead_server(tmp_path, visit, make_job(nodes=2, work=WORK))
