"""The lead's door over real TLS: who may join, which files go where, leases, and the end."""

from __future__ import annotations

import asyncio
import hashlib

import pytest
from pod_places import make_job, run_at_door
from tls_peers import until

from windlass import names, records
from windlass.agent import door
from windlass.agent.memory import Memory
from windlass.agent.station import Station
from windlass.plan.plan import Input
from windlass.wire.copying import Piece
from windlass.wire.folder import write_atomically
from windlass.wire.status import FailureKind, Phase


def put(folder, path, data):
    (folder.path / path).parent.mkdir(exist_ok=True)
    write_atomically(folder.path / path, data)


def send(peer, path, data, offset=0, total_bytes=None):
    piece = Piece(path=path, offset=offset, body=data, total_bytes=total_bytes)
    peer.link.send(piece.header, piece.body)


def make_input(name, data):
    return Input(name=name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


# -- nodes ---------------------------------------------------------------------------------------


def test_a_node_joins(tmp_path):
    memory = records.to_json(Memory(attempt=3))

    async def visit(scene):
        put(scene.folder, "attempt-0/rank-1.log", b"known")
        peer = await scene.join(1, host="rack-7", is_prepared=False, memory=memory)
        await until(lambda: peer.find("has"), "word of what the lead has")
        assert peer.kinds() == ["welcome", "has"]
        assert peer.find("has")["files"] == {"attempt-0/rank-1.log": 5}
        node = scene.board.status.nodes[1]
        assert (node.state, node.pid, node.python, node.host) == ("joined", 1, "3.12.1", "rack-7")
        assert scene.lead._told == [Memory(attempt=3)]
        assert scene.lead._roster.prepared() == [0]
        peer.say("prepared")
        await until(lambda: scene.lead._roster.prepared() == [0, 1], "node 1 is prepared")

    run_at_door(tmp_path, visit)


@pytest.mark.parametrize("index", [0, 3, 99])
def test_there_are_only_so_many_nodes(tmp_path, index):
    async def visit(scene):
        peer = await scene.visit(index)
        await until(lambda: peer.has_hung_up, "it was hung up on")
        assert peer.find("refused")["why"] == f"there is no node {index} in this job"

    run_at_door(tmp_path, visit)


def test_what_nodes_say_is_heard_and_what_the_lead_says_arrives(tmp_path):
    async def visit(scene):
        peer = await scene.join(1)
        await until(lambda: scene.lead.is_here(1), "node 1 has joined")
        scene.lead._tell_all({"type": "remember", "memory": {"attempt": 0}})
        peer.say("trouble", reason="LogTruncated", message="rank-1.log is incomplete")
        await until(lambda: scene.board.status.conditions, "the trouble on the board")
        await until(lambda: peer.find("remember"), "the order")

    run_at_door(tmp_path, visit)


def test_two_nodes_of_one_index_are_never_here_together(tmp_path):
    async def visit(scene):
        first = await scene.join(1)
        await until(lambda: scene.lead.is_here(1), "node 1 has joined")
        second = await scene.visit(1)
        await until(lambda: second.has_hung_up, "the second is hung up on")
        assert second.find("refused")["why"] == "node 1 is here already"
        assert (scene.lead.is_here(1), first.has_hung_up) == (True, False)
        await first.close()
        await until(lambda: not scene.lead.is_here(1), "the first is gone")
        await scene.join(1)
        await until(lambda: scene.lead.is_here(1), "the next one has joined")

    run_at_door(tmp_path, visit)


def test_a_node_that_leaves_is_lost_at_once_but_keeps_its_place(tmp_path, caplog):
    """Its ranks may still be running: the next one of its index must not come yet."""

    async def visit(scene):
        first = await scene.join(1)
        await until(lambda: scene.lead.is_here(1), "node 1 has joined")
        first.say("leaving", why="it was told to stop (SIGTERM)")
        await until(lambda: scene.state(1) == "lost", "node 1 is lost")
        second = await scene.visit(1)
        await until(lambda: second.has_hung_up, "the second is hung up on")
        assert not first.has_hung_up
        send(first, "attempt-0/rank-1.log", b"its last line\n")
        await until(scene.folder.log(0, 1).exists, "what it still had to send")

    run_at_door(tmp_path, visit)
    assert "is gone: it was told to stop (SIGTERM)" in caplog.text


def test_a_broken_link_is_a_lost_node(tmp_path, caplog):
    async def visit(scene):
        peer = await scene.join(1)
        await until(lambda: scene.lead.is_here(1), "node 1 has joined")
        peer.link._writer.transport.abort()
        await until(lambda: scene.state(1) == "lost", "node 1 is lost")

    run_at_door(tmp_path, visit)
    assert "is gone: its link broke" in caplog.text


def test_a_silent_node_is_lost(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(Station, "silence_s", 0.2)

    async def visit(scene):
        peer = await scene.join(1)
        await until(lambda: scene.state(1) == "lost", "node 1 is lost")
        await until(lambda: peer.has_hung_up, "it was hung up on")

    run_at_door(tmp_path, visit)
    assert "is gone: it has said nothing for 0.2 s" in caplog.text


@pytest.mark.parametrize(
    "said",
    [
        {"type": "outcome", "exited": True},
        {"type": "started", "rank": "zero", "pid": 1},
        {"type": "outcome", "exited": True, "outcome": {"rank": "x"}},
        {"type": "join"},
    ],
)
def test_who_says_something_malformed_is_refused(tmp_path, said):
    async def visit(scene):
        peer = await scene.join(1)
        await until(lambda: scene.lead.is_here(1), "node 1 has joined")
        peer.link.send(said)
        await until(lambda: peer.has_hung_up, "it was hung up on")
        assert peer.find("refused")
        assert scene.state(1) == "lost"

    run_at_door(tmp_path, visit)


# -- files ---------------------------------------------------------------------------------------


def test_what_ranks_left_comes_to_the_lead(tmp_path):
    async def visit(scene):
        peer = await scene.join(2)
        send(peer, "attempt-0/rank-2.log", b"one\n")
        send(peer, "attempt-0/rank-2.log", b"two\n", offset=4)
        send(peer, "attempt-0/rank-2.result", b"value", total_bytes=5)
        await until(scene.folder.result(0, 2).exists, "the result")
        assert scene.folder.log(0, 2).read_bytes() == b"one\ntwo\n"

    run_at_door(tmp_path, visit)


@pytest.mark.parametrize(
    ("path", "offset", "why"),
    [
        ("status.json", 0, "is not taken here"),
        ("../outside", 0, "is not taken here"),
        ("attempt-0/rank-1.log", 7, "goes on at 7, but ends at 0"),
    ],
)
def test_other_files_of_a_node_are_refused(tmp_path, path, offset, why):
    async def visit(scene):
        peer = await scene.join(1)
        send(peer, path, b"x", offset=offset)
        await until(lambda: peer.has_hung_up, "it was hung up on")
        assert why in peer.find("refused")["why"]
        assert scene.state(1) == "lost"

    run_at_door(tmp_path, visit)


def test_only_the_deputy_keeps_what_node_0_left(tmp_path):
    """So that the next node 0 finds it; inputs go to everybody who lacks them."""

    async def visit(scene):
        put(scene.folder, names.PAYLOAD_FILE, b"pickled")
        for rank in range(6):
            put(scene.folder, f"attempt-0/rank-{rank}.result", b"value")
        put(scene.folder, "attempt-0/world.json", b"[]")
        put(scene.folder, names.STATUS_FILE, b"{}")
        deputy, other = await scene.join(1), await scene.join(2)
        known = await scene.visit(None, has={})
        await until(lambda: names.STATUS_FILE in known.files(), "a client has all")
        await until(lambda: len(deputy.files()) == 4, "the deputy's files")
        await until(lambda: other.files(), "the other's files")
        kept = {"attempt-0/rank-0.result", "attempt-0/rank-1.result", "attempt-0/world.json"}
        assert set(deputy.files()) == {*kept, names.PAYLOAD_FILE}
        assert other.files() == {names.PAYLOAD_FILE: b"pickled"}

    run_at_door(tmp_path, visit, make_job(procs=2))


def test_what_a_node_has_is_not_sent_to_it(tmp_path):
    async def visit(scene):
        put(scene.folder, names.PAYLOAD_FILE, b"pickled")
        put(scene.folder, "attempt-0/rank-0.log", b"one\ntwo\n")
        has = {names.PAYLOAD_FILE: 7, "attempt-0/rank-0.log": 4}
        peer = await scene.join(1, has=has)
        await until(lambda: peer.find("piece"), "a piece")
        assert [(f.header["path"], f.header["offset"], f.body) for f in peer.heard[2:]] == [
            ("attempt-0/rank-0.log", 4, b"two\n")
        ]

    run_at_door(tmp_path, visit)


# -- clients -------------------------------------------------------------------------------------


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

    run_at_door(tmp_path, visit)


def test_a_client_brings_the_inputs_and_nodes_get_them(tmp_path):
    data = b"p" * 100

    async def visit(scene):
        node = await scene.join(1, is_prepared=False)
        client = await scene.visit(None, has={})
        await until(lambda: client.find("wants"), "the lead says what it wants")
        assert client.find("wants")["inputs"] is True
        assert scene.lead._roster.prepared() == []
        send(client, names.PAYLOAD_FILE, data[:60], total_bytes=100)
        send(client, names.PAYLOAD_FILE, data[60:], offset=60, total_bytes=100)
        await until(lambda: node.files() == {names.PAYLOAD_FILE: data}, "the node has it")
        assert scene.lead._roster.prepared() == [0]
        send(client, names.PAYLOAD_FILE, b"again", total_bytes=5)  # too late, and no matter
        client.say("cancel")
        await until(lambda: client.find("ok"), "the client is still heard")
        assert scene.folder.payload.read_bytes() == data

    plan = make_job(inputs=(make_input(names.PAYLOAD_FILE, data),))
    run_at_door(tmp_path, visit, plan, is_ready=False)


def test_a_client_that_brings_something_else_is_told_so(tmp_path):
    async def visit(scene):
        client = await scene.visit(None, has={})
        send(client, names.PAYLOAD_FILE, b"other", total_bytes=5)
        await until(lambda: client.has_hung_up, "it was hung up on")
        refused = client.find("refused")
        assert refused["why"] == "payload.pkl is not the one that was planned"
        assert refused["hint"] == "submit again"
        assert not scene.folder.payload.exists()

    plan = make_job(inputs=(make_input(names.PAYLOAD_FILE, b"right"),))
    run_at_door(tmp_path, visit, plan, is_ready=False)


@pytest.mark.parametrize("path", ["attempt-0/rank-0.log", "status.json", "plan.json"])
def test_a_client_brings_nothing_but_inputs(tmp_path, path):
    async def visit(scene):
        client = await scene.visit(None, has={})
        send(client, path, b"x", total_bytes=1)
        await until(lambda: client.has_hung_up, "it was hung up on")
        assert "is not taken here" in client.find("refused")["why"]

    plan = make_job(inputs=(make_input(names.PAYLOAD_FILE, b"right"),))
    run_at_door(tmp_path, visit, plan, is_ready=False)


@pytest.mark.parametrize("hello", [{"has": [1]}, {"has": {"a": "b"}}])
def test_a_client_that_says_nonsense_is_refused(tmp_path, hello):
    async def visit(scene):
        client = await scene.visit(None, **hello)
        await until(lambda: client.has_hung_up, "it was hung up on")
        assert "malformed" in client.find("refused")["why"]

    run_at_door(tmp_path, visit)


@pytest.mark.parametrize("now", [False, True])
def test_a_client_cancels(tmp_path, now):
    async def visit(scene):
        client = await scene.visit(None)
        client.say("cancel", now=now, why="enough")
        await until(lambda: client.find("ok"), "it was heard")
        assert (scene.lead._stop.kind, scene.lead._stop.message) == (
            FailureKind.CANCELLED,
            "enough",
        )
        assert scene.lead._now is now

    run_at_door(tmp_path, visit)


def test_an_attached_job_ends_when_nobody_holds_it(tmp_path):
    async def visit(scene):
        by_hello = await scene.visit(None, lease=True)
        by_word = await scene.visit(None)
        by_word.say("lease", held=True)
        await until(lambda: scene.door._num_leases == 2, "both hold it")
        watching = asyncio.ensure_future(scene.door.watch_lease())
        await by_hello.close()
        await until(lambda: scene.door._num_leases == 1, "one has let go")
        assert not watching.done()
        by_word.say("lease", held=True)  # said twice, held once
        by_word.say("lease", held=False)
        await asyncio.wait_for(watching, 20)
        assert scene.door._num_leases == 0
        assert scene.lead._stop.message == "its client has been gone for 0.2 s"

    run_at_door(tmp_path, visit, make_job(detach=False, lease_s=0.2))


# -- the end -------------------------------------------------------------------------------------


def test_clients_may_read_to_the_end(tmp_path):
    async def visit(scene):
        reader = await scene.visit(None, has={})
        holder = await scene.visit(None, lease=True)
        await until(lambda: scene.door._readers, "a reader")
        leaving = asyncio.ensure_future(scene.door.see_off(patience_s=30))
        await until(lambda: reader.find("wants"), "it reads")
        assert not leaving.done()
        await reader.close()
        await asyncio.wait_for(leaving, 20)
        assert not holder.has_hung_up  # it reads nothing: nobody waits for it
        await scene.door.see_off(patience_s=0)

    run_at_door(tmp_path, visit)


def test_a_reader_to_whom_nothing_moves_is_not_waited_for_for_ever(tmp_path):
    async def visit(scene):
        reader = await scene.visit(None, has={})
        await until(lambda: scene.door._readers, "a reader")
        await asyncio.wait_for(scene.door.see_off(patience_s=0.1), 20)
        assert not reader.has_hung_up

    run_at_door(tmp_path, visit)


def test_a_reader_that_has_gone_silent_is_let_go(tmp_path, monkeypatch):
    monkeypatch.setattr(door, "_READER_SILENCE_S", 0.2)

    async def visit(scene):
        silent = await scene.visit(None, has={}, lease=True)
        holder = await scene.visit(None, lease=True)
        await until(lambda: silent.has_hung_up, "the silent one is hung up on")
        await until(lambda: scene.door._num_leases == 1, "its lease is gone")
        assert not holder.has_hung_up  # it is on this machine: its socket tells when it is gone

    run_at_door(tmp_path, visit)


def test_everybody_is_told_of_the_end(tmp_path):
    async def visit(scene):
        peers = [await scene.join(1), await scene.visit(None, has={})]
        await until(lambda: scene.lead.is_here(1), "node 1 has joined")
        await scene.door.dismiss({"type": "end"})
        for peer in peers:
            await until(lambda peer=peer: peer.has_hung_up, "it was hung up on")
            assert peer.kinds()[-1] == "end"

    run_at_door(tmp_path, visit)


def test_a_whole_job_over_links(tmp_path):
    """Nodes join, run and tell; the last status is final only when all they left is here."""

    async def visit(scene):
        leading = asyncio.ensure_future(scene.lead.run())
        peer = await scene.join(1)
        await until(lambda: scene.orders and peer.find("start"), "the order to start")
        assert peer.find("start")["nodes"] == [0, 1]
        for index, rank in enumerate((0, 1)):
            outcome = {"rank": rank, "attempt": 0, "state": "returned", "at_s": 1.0}
            message = {"type": "outcome", "outcome": outcome, "exited": True}
            scene.lead.receive(index, message) if index == 0 else peer.link.send(message)
        await until(lambda: peer.find("flush"), "the order to send what is left")
        scene.lead.receive(0, {"type": "flushed"})
        assert not scene.board.status.phase.is_final
        send(peer, "attempt-0/rank-1.result", b"value", total_bytes=5)
        peer.say("flushed")
        await asyncio.wait_for(leading, 20)
        assert scene.board.status.phase is Phase.SUCCEEDED
        assert scene.folder.result(0, 1).read_bytes() == b"value"

    run_at_door(tmp_path, visit, make_job(nodes=2))
