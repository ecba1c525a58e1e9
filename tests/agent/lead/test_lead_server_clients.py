"""Server of the lead over real TLS: clients, the files they send and get, leases, and the end."""

from __future__ import annotations

import asyncio
import hashlib

import pytest
from pod_connections import make_job, put, run_lead_server, send
from tls_peers import until

from windlass import names
from windlass.agent.lead import lead_server
from windlass.errors import ProtocolError
from windlass.plan.plan import Input
from windlass.wire.messages.jobs import NODE_TO_LEAD
from windlass.wire.status import FailureKind, Phase


def make_input(name, data):
    return Input(name=name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def test_a_client_is_sent_everything_and_the_status_last(tmp_path):
    async def visit(scene):
        put(scene.folder, "attempt-0/rank-0.log", b"one\n")
        put(scene.folder, names.STATUS_FILE, b"{}")
        put(scene.folder, names.PAYLOAD_FILE, b"not for clients")
        peer = await scene.visit(None, has={})
        await until(lambda: names.STATUS_FILE in peer.files(), "the status")
        assert peer.kinds() == ["welcome", "wants", "piece", "piece"]
        assert peer.find("wants")["inputs"] is False
        assert peer.files() == {"attempt-0/rank-0.log": b"one\n", names.STATUS_FILE: b"{}"}

    run_lead_server(tmp_path, visit)


def test_inputs_of_a_client_reach_the_nodes(tmp_path):
    data = b"p" * 100

    async def visit(scene):
        node = await scene.join(1, is_prepared=False)
        client = await scene.visit(None, has={})
        await until(lambda: client.find("wants"), "the lead's request arrives")
        assert client.find("wants")["inputs"] is True
        assert scene.lead.nodes.prepared() == []
        send(client, names.PAYLOAD_FILE, data[:60], total_bytes=100)
        send(client, names.PAYLOAD_FILE, data[60:], offset=60, total_bytes=100)
        await until(lambda: node.files() == {names.PAYLOAD_FILE: data}, "the node has it")
        assert scene.lead.nodes.prepared() == [0]
        send(client, names.PAYLOAD_FILE, b"again", total_bytes=5)  # too late, which is harmless
        client.say("cancel")
        await until(lambda: client.find("ok"), "the client is still served")
        assert scene.folder.payload.read_bytes() == data

    plan = make_job(inputs=(make_input(names.PAYLOAD_FILE, data),))
    run_lead_server(tmp_path, visit, plan, is_ready=False)


def test_two_clients_can_send_the_same_inputs(tmp_path):
    """Clients alternate piece by piece. The slower one sends its last piece when it is no longer needed."""
    data = bytes(range(256)) * 4

    async def visit(scene):
        first, second = [await scene.visit(None, has={}) for _ in range(2)]
        for offset in (0, 256, 512):
            for client in (first, second):
                piece = data[offset : offset + 256]
                send(client, names.PAYLOAD_FILE, piece, offset=offset, total_bytes=1024)
        send(second, names.PAYLOAD_FILE, data[768:], offset=768, total_bytes=1024)
        await until(lambda: scene.lead.nodes.prepared() == [0], "the lead has it")
        send(first, names.PAYLOAD_FILE, data[768:], offset=768, total_bytes=1024)
        for client in (first, second):
            client.say("cancel")
            await until(lambda client=client: client.find("ok"), "it is still served")
            assert client.find("refused") is None
        assert scene.folder.payload.read_bytes() == data
        for client in (first, second):
            await client.close()
        await until(
            lambda: not list(scene.folder.path.glob(".*.part")), "partial files are deleted"
        )

    plan = make_job(inputs=(make_input(names.PAYLOAD_FILE, data),))
    run_lead_server(tmp_path, visit, plan, is_ready=False)


def test_client_that_sends_wrong_inputs_is_refused(tmp_path):
    async def visit(scene):
        client = await scene.visit(None, has={})
        send(client, names.PAYLOAD_FILE, b"other", total_bytes=5)
        await until(lambda: client.has_hung_up, "it is disconnected")
        refused = client.find("refused")
        assert refused["why"] == "payload.pkl differs from the one in the plan"
        assert refused["hint"] == "submit the job again"
        assert not scene.folder.payload.exists()

    plan = make_job(inputs=(make_input(names.PAYLOAD_FILE, b"right"),))
    run_lead_server(tmp_path, visit, plan, is_ready=False)


@pytest.mark.parametrize("path", ["attempt-0/rank-0.log", "status.json", "plan.json"])
def test_client_may_only_send_inputs(tmp_path, path):
    async def visit(scene):
        client = await scene.visit(None, has={})
        send(client, path, b"x", total_bytes=1)
        await until(lambda: client.has_hung_up, "it is disconnected")
        assert "is not accepted here" in client.find("refused")["why"]

    plan = make_job(inputs=(make_input(names.PAYLOAD_FILE, b"right"),))
    run_lead_server(tmp_path, visit, plan, is_ready=False)


@pytest.mark.parametrize("hello", [{"has": [1]}, {"has": {"a": "b"}}])
def test_malformed_hello_is_refused(tmp_path, hello):
    async def visit(scene):
        with pytest.raises(ProtocolError, match="malformed"):
            await scene.visit(None, **hello)

    run_lead_server(tmp_path, visit)


@pytest.mark.parametrize("now", [False, True])
def test_a_client_cancels(tmp_path, now):
    async def visit(scene):
        client = await scene.visit(None)
        client.say("cancel", now=now, why="enough")
        await until(lambda: client.find("ok"), "the cancellation is confirmed")
        assert (scene.lead.stop.verdict.kind, scene.lead.stop.verdict.message) == (
            FailureKind.CANCELLED,
            "enough",
        )
        assert scene.lead.stop.now is now

    run_lead_server(tmp_path, visit)


def test_attached_job_ends_without_a_lease(tmp_path):
    async def visit(scene):
        by_hello = await scene.visit(None, lease=True)
        by_message = await scene.visit(None)
        by_message.say("lease", held=True)
        await until(lambda: scene.lead_server._num_leases == 2, "both hold it")
        watching = asyncio.ensure_future(scene.lead_server.watch_lease())
        await by_hello.close()
        await until(lambda: scene.lead_server._num_leases == 1, "one has let go")
        assert not watching.done()
        by_message.say("lease", held=True)  # a repeated message counts once
        by_message.say("lease", held=False)
        await asyncio.wait_for(watching, 20)
        assert scene.lead_server._num_leases == 0
        assert scene.lead.stop.verdict.message == "its client has been gone for 0.2 s"

    run_lead_server(tmp_path, visit, make_job(detach=False, lease_s=0.2))


def test_first_lease_may_come_later_than_the_lease_timeout(tmp_path):
    async def visit(scene):
        watching = asyncio.ensure_future(scene.lead_server.watch_lease())
        await asyncio.wait({watching}, timeout=20 * 0.02)
        assert not watching.done()
        client = await scene.visit(None, lease=True)
        await until(lambda: scene.lead_server._num_leases == 1, "it holds it")
        await client.close()
        await asyncio.wait_for(watching, 20)
        assert scene.lead.stop.verdict.message == "its client has been gone for 0.02 s"

    run_lead_server(tmp_path, visit, make_job(detach=False, lease_s=0.02))


def test_clients_without_a_lease_do_not_keep_an_abandoned_job(tmp_path):
    """Such clients are `windlass ls` in a loop, or a dashboard."""

    async def visit(scene):
        owner = await scene.visit(None, lease=True)
        await until(lambda: scene.lead_server._num_leases == 1, "it is held")
        watching = asyncio.ensure_future(scene.lead_server.watch_lease())
        await owner.close()

        async def look():
            while not watching.done():
                await (await scene.visit(None)).close()

        await asyncio.wait_for(look(), 20)
        assert scene.lead.stop.verdict.message == "its client has been gone for 1 s"

    run_lead_server(tmp_path, visit, make_job(detach=False, lease_s=1.0))


# -- the end -------------------------------------------------------------------------------------


def test_clients_may_read_to_the_end(tmp_path):
    async def visit(scene):
        reader = await scene.visit(None, has={})
        holder = await scene.visit(None, lease=True)
        await until(lambda: scene.lead_server._readers, "a reader")
        leaving = asyncio.ensure_future(scene.lead_server.wait_for_readers(idle_timeout_s=30))
        await until(lambda: reader.find("wants"), "it reads")
        assert not leaving.done()
        await reader.close()
        await asyncio.wait_for(leaving, 20)
        assert not holder.has_hung_up  # it reads nothing, so the lead does not wait for it
        await scene.lead_server.wait_for_readers(idle_timeout_s=0)

    run_lead_server(tmp_path, visit)


def test_lead_does_not_wait_forever_for_a_stalled_reader(tmp_path):
    async def visit(scene):
        reader = await scene.visit(None, has={})
        await until(lambda: scene.lead_server._readers, "a reader")
        await asyncio.wait_for(scene.lead_server.wait_for_readers(idle_timeout_s=0.1), 20)
        assert not reader.has_hung_up

    run_lead_server(tmp_path, visit)


def test_silent_reader_is_disconnected(tmp_path, monkeypatch):
    monkeypatch.setattr(lead_server, "READER_SILENCE_S", 0.2)

    async def visit(scene):
        silent = await scene.visit(None, has={}, lease=True)
        holder = await scene.visit(None, lease=True)
        await until(lambda: silent.has_hung_up, "the silent one is disconnected")
        await until(lambda: scene.lead_server._num_leases == 1, "its lease has ended")
        assert not holder.has_hung_up  # it is on this machine, so its socket shows when it exits

    run_lead_server(tmp_path, visit)


def test_all_peers_are_notified_of_the_end(tmp_path):
    async def visit(scene):
        peers = [await scene.join(1), await scene.visit(None, has={})]
        await until(lambda: 1 in scene.lead.nodes, "node 1 has joined")
        await scene.lead_server.close_links({"type": "end"})
        for peer in peers:
            await until(lambda peer=peer: peer.has_hung_up, "it is disconnected")
            assert peer.kinds()[-1] == "end"

    run_lead_server(tmp_path, visit)


def test_complete_job_over_links(tmp_path):
    """Nodes join, run and report. The status becomes final only when all their files have arrived."""

    async def visit(scene):
        leading = asyncio.ensure_future(scene.lead.run())
        peer = await scene.join(1)
        await until(lambda: scene.orders and peer.find("start"), "the order to start")
        assert peer.find("start")["nodes"] == [0, 1]
        for index, rank in enumerate((0, 1)):
            outcome = {"rank": rank, "attempt": 0, "state": "returned", "at_s": 1.0}
            message = {"type": "outcome", "outcome": outcome, "exited": True}
            scene.lead.receive(index, NODE_TO_LEAD.read(message)) if index == 0 else peer.link.send(
                message
            )
        await until(lambda: peer.find("flush"), "the order to flush")
        scene.lead.receive(0, NODE_TO_LEAD.read({"type": "flushed"}))
        assert not scene.status_writer.status.phase.is_final
        send(peer, "attempt-0/rank-1.result", b"value", total_bytes=5)
        peer.say("flushed")
        await asyncio.wait_for(leading, 20)
        assert scene.status_writer.status.phase is Phase.SUCCEEDED
        assert scene.folder.result(0, 1).read_bytes() == b"value"

    run_lead_server(tmp_path, visit, make_job(nodes=2))
