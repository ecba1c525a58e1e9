"""Follower in its own process, under a scripted lead, with real TLS and real ranks."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal

import pytest
from pod_connections import HandMadeLead, follower_process, make_job
from tls_peers import run_with_lead, until, write_certificates

from windlass import names
from windlass.agent.link.agent_link import beat
from windlass.plan.plan import Input
from windlass.spec.work import Command
from windlass.wire.file_sync import Piece

SLEEP = Command(argv=("sh", "-c", "echo pid $$; exec sleep 600"))
IGNORES_SIGTERM = Command(argv=("sh", "-c", "trap '' TERM; echo pid $$; sleep 600 & wait; wait"))
PRINT = Command(argv=("sh", "-c", "echo one; echo two"))
LOG = "attempt-{}/rank-1.log"


def follow(tmp_path, visit, plan, *, lead=None, **constants):
    """Start a follower of a scripted lead, and run `visit(lead, process)`."""
    lead = lead or HandMadeLead()
    files = write_certificates(tmp_path / "tls")

    async def run(listener):
        with follower_process(tmp_path, plan, listener.port, **constants) as process:
            await visit(lead, process)

    run_with_lead(files, run, lead.take)


async def wait_for_visit(lead, number=0):
    """Return a visit of the follower after its join message."""
    await until(lambda: len(lead.visits) > number, f"visit {number}")
    await until(lambda: lead.visits[number].find("join"), "its join message")
    return lead.visits[number]


def start(peer, attempt=0):
    order = {"attempt": attempt, "nodes": [0, 1], "address": "127.0.0.1", "port": 1}
    peer.say("start", has_store=False, **order)


async def find_pid(peer, attempt=0):
    """Return the PID that a rank printed, from its log as sent over the link."""

    def read_log():
        return peer.files().get(LOG.format(attempt), b"")

    await until(lambda: read_log().endswith(b"\n"), "the rank's first line")
    return int(read_log().split()[-1])


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


async def wait_for_exit(process):
    await until(lambda: process.poll() is not None, "the follower has exited")
    return process.returncode


def test_follower_joins_runs_ranks_and_exits(tmp_path):
    async def visit(lead, process):
        peer = await wait_for_visit(lead)
        joined = peer.find("join")
        assert joined["host"] == "rack-7"
        assert joined["is_prepared"] is True
        assert (joined["memory"], joined["has"]) == (None, {})
        assert joined["python"].startswith("3.")
        peer.say("has", files={})
        start(peer)
        await until(lambda: peer.find("outcome"), "the rank has returned")
        assert peer.find("outcome")["outcome"]["state"] == "returned"
        assert peer.find("started")["rank"] == 1
        peer.say("flush")
        await until(lambda: peer.find("flushed"), "everything is sent")
        lines = peer.files()[LOG.format(0)].splitlines()
        assert [line.split(b" ")[-1] for line in lines] == [b"one", b"two"]
        peer.say("end")
        await peer.link.close()
        assert await wait_for_exit(process) == 0

    follow(tmp_path, visit, make_job(nodes=2, work=PRINT))


def test_follower_exits_when_its_assigned_index_is_taken(tmp_path):
    """Its container is restarted and asks for another index."""

    async def visit(lead, process):
        peer = await wait_for_visit(lead)
        assert lead.hellos[0].last_lead == "lead-1"
        agent = lead.hellos[0].agent
        peer.say("index", index=1, lead="lead-2")
        peer.say("flush")
        await until(lambda: peer.find("flushed"), "both messages are processed")
        peer.link.cut()
        peer = await wait_for_visit(lead, 1)
        assert (lead.hellos[1].agent, lead.hellos[1].last_lead) == (agent, "lead-2")
        peer.say("index", index=None, lead="lead-2")
        await peer.link.close()
        assert await wait_for_exit(process) == 1

    follow(tmp_path, visit, make_job(nodes=2), given_by="lead-1")


def test_unreadable_result_is_reported_before_the_flush_ends(tmp_path):
    async def visit(lead, _process):
        peer = await wait_for_visit(lead)
        (tmp_path / "follower" / "attempt-0" / "rank-1.result").mkdir(parents=True)
        peer.say("has", files={})
        peer.say("flush")
        await until(lambda: peer.find("flushed"), "everything is sent")
        trouble = peer.find("trouble")
        assert trouble["reason"] == "ResultMissing"
        path, why = "attempt-0/rank-1.result", "Is a directory"
        assert trouble["message"] == f"train-ab12c-node-1 could not send {path}: {why}"

    follow(tmp_path, visit, make_job(nodes=2))


def test_inputs_arrive_over_the_link(tmp_path):
    data = b"pickled"
    wanted = Input(
        name=names.PAYLOAD_FILE,
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )

    async def visit(lead, _process):
        peer = await wait_for_visit(lead)
        assert peer.find("join")["is_prepared"] is False
        wrong = Piece(path=names.PAYLOAD_FILE, offset=0, body=b"pickles", total_bytes=7)
        peer.link.send(wrong.message, wrong.body)
        await until(lambda: peer.has_hung_up, "it refuses a wrong input")
        again = await wait_for_visit(lead, 1)
        assert again.find("join")["has"] == {}
        right = Piece(path=names.PAYLOAD_FILE, offset=0, body=data, total_bytes=7)
        again.link.send(right.message, right.body)
        await until(lambda: again.find("prepared"), "it is prepared")
        assert (tmp_path / "follower" / names.PAYLOAD_FILE).read_bytes() == data
        await again.link.close()
        third = await wait_for_visit(lead, 2)
        assert third.find("join")["is_prepared"] is True
        assert third.find("join")["has"] == {names.PAYLOAD_FILE: 7}

    plan = make_job(nodes=2, inputs=(wanted,))
    follow(tmp_path, visit, plan, _REFUSED_RETRY_S=0.05)


def test_follower_keeps_the_files_of_node_0(tmp_path):
    """It keeps files of node 0's ranks for the next node 0, and sends them to a lead that lacks them."""

    async def visit(lead, _process):
        peer = await wait_for_visit(lead)
        piece = Piece(path="attempt-0/rank-0.log", offset=0, body=b"of node 0\n")
        peer.link.send(piece.message, piece.body)
        peer.say("remember", memory={"attempt": 4})
        await until((tmp_path / "follower" / piece.path).exists, "it is kept")
        await peer.link.close()
        again = await wait_for_visit(lead, 1)
        assert again.find("join")["memory"]["attempt"] == 4
        again.say("has", files={"attempt-0/rank-0.log": 3})
        await until(lambda: again.find("piece"), "it sends the file back")
        assert (again.find("piece")["offset"], again.heard[-1].body) == (3, b"node 0\n")

    follow(tmp_path, visit, make_job(nodes=2))


@pytest.mark.parametrize("work", [SLEEP, IGNORES_SIGTERM])
def test_follower_ends_its_ranks_and_joins_the_next_lead(tmp_path, work):
    """It joins only after its last rank has exited, so two attempts never overlap."""

    async def visit(lead, process):
        peer = await wait_for_visit(lead)
        peer.say("has", files={})
        start(peer)
        pid = await find_pid(peer)
        assert is_running(pid)
        await peer.link.close()
        again = await wait_for_visit(lead, 1)
        assert not is_running(pid)
        again.say("has", files={LOG.format(0): 10**6})
        start(again, attempt=1)
        assert is_running(await find_pid(again, 1))
        assert process.poll() is None

    follow(tmp_path, visit, make_job(nodes=2, work=work))


def test_silent_lead_is_given_up(tmp_path):
    async def visit(lead, _process):
        peer = await wait_for_visit(lead)
        peer.say("has", files={})
        start(peer)
        beating = asyncio.ensure_future(beat(peer.link))
        pid = await find_pid(peer)
        beating.cancel()
        lead.beats = True
        again = await wait_for_visit(lead, 1)
        assert not is_running(pid)
        assert not again.has_hung_up

    lead = HandMadeLead(beats=False)
    follow(tmp_path, visit, make_job(nodes=2, work=SLEEP), lead=lead, limits={"fence_s": 2.5})
    assert "the lead has sent nothing for 2.5 s" in (tmp_path / "follower.log").read_text()


def test_follower_retries_while_its_index_is_in_use(tmp_path):
    async def visit(lead, process):
        await wait_for_visit(lead)
        assert (lead.refuses, process.poll()) == (0, None)

    lead = HandMadeLead(refuses=2)
    follow(tmp_path, visit, make_job(nodes=2), lead=lead, _REFUSED_RETRY_S=0.05)
    assert "node 1 is already connected" in (tmp_path / "follower.log").read_text()


def test_follower_on_sigterm_reports_it_and_ends_its_ranks(tmp_path):
    async def visit(lead, process):
        peer = await wait_for_visit(lead)
        peer.say("has", files={})
        start(peer)
        pid = await find_pid(peer)
        process.send_signal(signal.SIGTERM)
        await until(lambda: peer.find("leaving"), "it reports that it is leaving")
        assert peer.find("leaving")["why"] == "it received SIGTERM"
        assert await wait_for_exit(process) == 143
        assert not is_running(pid)

    follow(tmp_path, visit, make_job(nodes=2, work=SLEEP))


def test_ranks_are_renumbered_with_the_world(tmp_path):
    """Only two of three nodes take part, and node 1 is the first of them."""
    work = Command(argv=("sh", "-c", "echo $RANK of $WORLD_SIZE on $GROUP_RANK"))

    async def visit(lead, _process):
        peer = await wait_for_visit(lead)
        peer.say("has", files={})
        order = {"attempt": 2, "nodes": [1, 2], "address": "127.0.0.1", "port": 1}
        peer.say("start", has_store=False, **order)
        path = "attempt-2/rank-0.log"
        await until(lambda: peer.files().get(path, b"").endswith(b"\n"), "its line")
        assert peer.files()[path].endswith(b" F 0 of 2 on 0\n")

    follow(tmp_path, visit, make_job(nodes=3, work=work))


def test_follower_exits_if_the_lead_never_starts(tmp_path):
    async def run(listener):
        port = listener.port
        listener.close()
        plan = make_job(nodes=2, join_timeout_s=0.5)
        with follower_process(tmp_path, plan, port) as process:
            assert await wait_for_exit(process) == 1

    run_with_lead(write_certificates(tmp_path / "tls"), run)
    assert "the lead cannot be reached" in (tmp_path / "follower.log").read_text()
