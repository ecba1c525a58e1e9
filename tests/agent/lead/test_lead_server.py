"""Server of the lead over real TLS: nodes that join and leave, and transfers of files."""

from __future__ import annotations

import pytest
from pod_connections import make_job, put, run_lead_server, send
from tls_peers import until

from windlass import names, records
from windlass.agent.agent_context import AgentContext
from windlass.wire.lead_handover import LeadHandover
from windlass.wire.messages.jobs import KeepHandover

# -- nodes ---------------------------------------------------------------------------------------


def test_a_node_joins(tmp_path):
    memory = records.to_json(LeadHandover(attempt=3))

    async def visit(scene):
        put(scene.folder, "attempt-0/rank-1.log", b"known")
        peer = await scene.join(1, host="rack-7", is_prepared=False, memory=memory)
        await until(lambda: peer.find("has"), "the list of the lead's files")
        assert peer.kinds() == ["welcome", "has"]
        assert peer.find("has")["files"] == {"attempt-0/rank-1.log": 5}
        node = scene.status_writer.status.nodes[1]
        assert (node.state, node.pid, node.python, node.host) == ("joined", 1, "3.12.1", "rack-7")
        assert scene.lead.budget.reported == [LeadHandover(attempt=3)]
        assert scene.lead.nodes.prepared() == [0]
        peer.say("prepared")
        await until(lambda: scene.lead.nodes.prepared() == [0, 1], "node 1 is prepared")

    run_lead_server(tmp_path, visit)


@pytest.mark.parametrize("index", [0, 3, 99])
def test_node_outside_the_job_is_refused(tmp_path, index):
    async def visit(scene):
        peer = await scene.visit(index)
        await until(lambda: peer.has_hung_up, "it is disconnected")
        assert peer.find("refused")["why"] == f"node {index} is not part of this job"

    run_lead_server(tmp_path, visit)


def test_messages_pass_in_both_directions(tmp_path):
    async def visit(scene):
        peer = await scene.join(1)
        await until(lambda: 1 in scene.lead.nodes, "node 1 has joined")
        scene.lead.nodes.send_all(KeepHandover(memory=LeadHandover(attempt=0)))
        peer.say("trouble", reason="LogTruncated", message="rank-1.log is incomplete")
        await until(lambda: scene.status_writer.status.conditions, "the trouble is in the status")
        await until(lambda: peer.find("remember"), "the order")

    run_lead_server(tmp_path, visit)


def test_second_node_of_an_index_is_refused(tmp_path):
    async def visit(scene):
        first = await scene.join(1)
        await until(lambda: 1 in scene.lead.nodes, "node 1 has joined")
        second = await scene.visit(1)
        await until(lambda: second.has_hung_up, "the second is disconnected")
        assert second.find("refused")["why"] == "node 1 is already connected"
        assert ((1 in scene.lead.nodes), first.has_hung_up) == (True, False)
        await first.close()
        await until(lambda: 1 not in scene.lead.nodes, "the first has left")
        await scene.join(1)
        await until(lambda: 1 in scene.lead.nodes, "the next one has joined")

    run_lead_server(tmp_path, visit)


def test_leaving_node_is_lost_but_keeps_its_index(tmp_path, caplog):
    """Its ranks may still be running, so a new node of its index must not join yet."""

    async def visit(scene):
        first = await scene.join(1)
        await until(lambda: 1 in scene.lead.nodes, "node 1 has joined")
        first.say("leaving", why="it received SIGTERM")
        await until(lambda: scene.state(1) == "lost", "node 1 is lost")
        second = await scene.visit(1)
        await until(lambda: second.has_hung_up, "the second is disconnected")
        assert not first.has_hung_up
        send(first, "attempt-0/rank-1.log", b"its last line\n")
        await until(scene.folder.log(0, 1).exists, "its remaining output arrives")

    run_lead_server(tmp_path, visit)
    assert "is gone: it received SIGTERM" in caplog.text


def test_a_broken_link_is_a_lost_node(tmp_path, caplog):
    async def visit(scene):
        peer = await scene.join(1)
        await until(lambda: 1 in scene.lead.nodes, "node 1 has joined")
        peer.link._transport.abort()
        await until(lambda: scene.state(1) == "lost", "node 1 is lost")

    run_lead_server(tmp_path, visit)
    assert "is gone: its connection broke" in caplog.text


def test_a_silent_node_is_lost(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(AgentContext, "silence_s", 0.2)

    async def visit(scene):
        peer = await scene.join(1)
        await until(lambda: scene.state(1) == "lost", "node 1 is lost")
        await until(lambda: peer.has_hung_up, "it is disconnected")

    run_lead_server(tmp_path, visit)
    assert "is gone: it has sent nothing for 0.2 s" in caplog.text


@pytest.mark.parametrize(
    "message",
    [
        {"type": "outcome", "exited": True},
        {"type": "started", "rank": "zero", "pid": 1},
        {"type": "outcome", "exited": True, "outcome": {"rank": "x"}},
        {"type": "join"},
    ],
)
def test_malformed_message_is_refused(tmp_path, message):
    async def visit(scene):
        peer = await scene.join(1)
        await until(lambda: 1 in scene.lead.nodes, "node 1 has joined")
        peer.link.send(message)
        await until(lambda: peer.has_hung_up, "it is disconnected")
        assert peer.find("refused")
        assert scene.state(1) == "lost"

    run_lead_server(tmp_path, visit)


# -- files ---------------------------------------------------------------------------------------


def test_files_of_ranks_reach_the_lead(tmp_path):
    async def visit(scene):
        peer = await scene.join(2)
        send(peer, "attempt-0/rank-2.log", b"one\n")
        send(peer, "attempt-0/rank-2.log", b"two\n", offset=4)
        send(peer, "attempt-0/rank-2.result", b"value", total_bytes=5)
        await until(scene.folder.result(0, 2).exists, "the result")
        assert scene.folder.log(0, 2).read_bytes() == b"one\ntwo\n"

    run_lead_server(tmp_path, visit)


@pytest.mark.parametrize(
    ("path", "offset", "why"),
    [
        ("status.json", 0, "is not accepted here"),
        ("../outside", 0, "is not accepted here"),
        ("attempt-0/rank-1.log", 7, "starts at 7, but the file ends at 0"),
    ],
)
def test_other_files_of_a_node_are_refused(tmp_path, path, offset, why):
    async def visit(scene):
        peer = await scene.join(1)
        send(peer, path, b"x", offset=offset)
        await until(lambda: peer.has_hung_up, "it is disconnected")
        assert why in peer.find("refused")["why"]
        assert scene.state(1) == "lost"

    run_lead_server(tmp_path, visit)


def test_only_the_deputy_keeps_the_files_of_node_0(tmp_path):
    """The next node 0 finds them there. Inputs go to every node that lacks them."""

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

    run_lead_server(tmp_path, visit, make_job(procs=2))


def test_files_of_a_node_are_not_sent_to_it(tmp_path):
    async def visit(scene):
        put(scene.folder, names.PAYLOAD_FILE, b"pickled")
        put(scene.folder, "attempt-0/rank-0.log", b"one\ntwo\n")
        has = {names.PAYLOAD_FILE: 7, "attempt-0/rank-0.log": 4}
        peer = await scene.join(1, has=has)
        await until(lambda: peer.find("piece"), "a piece")
        assert [(f.header["path"], f.header["offset"], f.body) for f in peer.heard[2:]] == [
            ("attempt-0/rank-0.log", 4, b"two\n")
        ]

    run_lead_server(tmp_path, visit)
