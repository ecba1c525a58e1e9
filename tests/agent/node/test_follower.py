"""A follower in a process of its own, under a lead that does what the test says: real TLS, real ranks."""

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
DEAF = Command(argv=("sh", "-c", "trap '' TERM; echo pid $$; sleep 600 & wait; wait"))
PRINT = Command(argv=("sh", "-c", "echo one; echo two"))
LOG = "attempt-{}/rank-1.log"


def follow(tmp_path, visit, plan, *, lead=None, **constants):
    """Start a follower of a hand-made lead, and let `visit(lead, process)` happen."""
    lead = lead or HandMadeLead()
    files = write_certificates(tmp_path / "tls")

    async def run(listener):
        with follower_process(tmp_path, plan, listener.port, **constants) as process:
            await visit(lead, process)

    run_with_lead(files, run, lead.take)


async def meet(lead, number=0):
    """The follower's visit, once it has introduced itself."""
    await until(lambda: len(lead.visits) > number, f"visit {number}")
    await until(lambda: lead.visits[number].find("join"), "its name")
    return lead.visits[number]


def start(peer, attempt=0):
    order = {"attempt": attempt, "nodes": [0, 1], "address": "127.0.0.1", "port": 1}
    peer.say("start", has_store=False, **order)


async def find_pid(peer, attempt=0):
    """The pid a rank printed, as its log came over the link."""

    def said():
        return peer.files().get(LOG.format(attempt), b"")

    await until(lambda: said().endswith(b"\n"), "the rank's first line")
    return int(said().split()[-1])


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


async def ended(process):
    await until(lambda: process.poll() is not None, "the follower has ended")
    return process.returncode


def test_it_joins_runs_ranks_and_ends(tmp_path):
    async def visit(lead, process):
        peer = await meet(lead)
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
        await until(lambda: peer.find("flushed"), "all is sent")
        lines = peer.files()[LOG.format(0)].splitlines()
        assert [line.split(b" ")[-1] for line in lines] == [b"one", b"two"]
        peer.say("end")
        await peer.link.close()
        assert await ended(process) == 0

    follow(tmp_path, visit, make_job(nodes=2, work=PRINT))


def test_one_that_was_given_its_index_ends_when_that_is_anothers(tmp_path):
    """Its container is started again, and asks for another."""

    async def visit(lead, process):
        peer = await meet(lead)
        assert lead.hellos[0].last_lead == "lead-1"
        agent = lead.hellos[0].agent
        peer.say("index", index=1, lead="lead-2")
        peer.say("flush")
        await until(lambda: peer.find("flushed"), "it has heard both")
        peer.link.cut()
        peer = await meet(lead, 1)
        assert (lead.hellos[1].agent, lead.hellos[1].last_lead) == (agent, "lead-2")
        peer.say("index", index=None, lead="lead-2")
        await peer.link.close()
        assert await ended(process) == 1

    follow(tmp_path, visit, make_job(nodes=2), given_by="lead-1")


def test_a_result_that_it_cannot_read_is_told_before_it_has_sent_all(tmp_path):
    async def visit(lead, _process):
        peer = await meet(lead)
        (tmp_path / "follower" / "attempt-0" / "rank-1.result").mkdir(parents=True)
        peer.say("has", files={})
        peer.say("flush")
        await until(lambda: peer.find("flushed"), "all is sent")
        told = peer.find("trouble")
        assert told["reason"] == "ResultMissing"
        path, why = "attempt-0/rank-1.result", "Is a directory"
        assert told["message"] == f"train-ab12c-node-1 could not send {path}: {why}"

    follow(tmp_path, visit, make_job(nodes=2))


def test_inputs_come_over_the_link(tmp_path):
    data = b"pickled"
    wanted = Input(
        name=names.PAYLOAD_FILE,
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )

    async def visit(lead, _process):
        peer = await meet(lead)
        assert peer.find("join")["is_prepared"] is False
        wrong = Piece(path=names.PAYLOAD_FILE, offset=0, body=b"pickles", total_bytes=7)
        peer.link.send(wrong.message, wrong.body)
        await until(lambda: peer.has_hung_up, "it does not take another one")
        again = await meet(lead, 1)
        assert again.find("join")["has"] == {}
        right = Piece(path=names.PAYLOAD_FILE, offset=0, body=data, total_bytes=7)
        again.link.send(right.message, right.body)
        await until(lambda: again.find("prepared"), "it is prepared")
        assert (tmp_path / "follower" / names.PAYLOAD_FILE).read_bytes() == data
        await again.link.close()
        third = await meet(lead, 2)
        assert third.find("join")["is_prepared"] is True
        assert third.find("join")["has"] == {names.PAYLOAD_FILE: 7}

    plan = make_job(nodes=2, inputs=(wanted,))
    follow(tmp_path, visit, plan, _REFUSED_RETRY_S=0.05)


def test_it_keeps_what_the_lead_gives_it_to_keep(tmp_path):
    """What node 0's ranks left, for the next node 0; and gives it to a lead that lacks it."""

    async def visit(lead, _process):
        peer = await meet(lead)
        piece = Piece(path="attempt-0/rank-0.log", offset=0, body=b"of node 0\n")
        peer.link.send(piece.message, piece.body)
        peer.say("remember", memory={"attempt": 4})
        await until((tmp_path / "follower" / piece.path).exists, "it is kept")
        await peer.link.close()
        again = await meet(lead, 1)
        assert again.find("join")["memory"]["attempt"] == 4
        again.say("has", files={"attempt-0/rank-0.log": 3})
        await until(lambda: again.find("piece"), "it gives it back")
        assert (again.find("piece")["offset"], again.heard[-1].body) == (3, b"node 0\n")

    follow(tmp_path, visit, make_job(nodes=2))


@pytest.mark.parametrize("work", [SLEEP, DEAF])
def test_a_lead_that_hangs_up_makes_it_end_its_ranks_and_join_the_next(tmp_path, work):
    """Not before the last of them is gone: no two attempts ever overlap."""

    async def visit(lead, process):
        peer = await meet(lead)
        peer.say("has", files={})
        start(peer)
        pid = await find_pid(peer)
        assert is_running(pid)
        await peer.link.close()
        again = await meet(lead, 1)
        assert not is_running(pid)
        again.say("has", files={LOG.format(0): 10**6})
        start(again, attempt=1)
        assert is_running(await find_pid(again, 1))
        assert process.poll() is None

    follow(tmp_path, visit, make_job(nodes=2, work=work))


def test_a_lead_that_falls_silent_is_taken_for_gone(tmp_path):
    async def visit(lead, _process):
        peer = await meet(lead)
        peer.say("has", files={})
        start(peer)
        beating = asyncio.ensure_future(beat(peer.link))
        pid = await find_pid(peer)
        beating.cancel()
        lead.beats = True
        again = await meet(lead, 1)
        assert not is_running(pid)
        assert not again.has_hung_up

    lead = HandMadeLead(beats=False)
    follow(tmp_path, visit, make_job(nodes=2, work=SLEEP), lead=lead, sight={"fence_s": 2.5})
    assert "the lead has sent nothing for 2.5 s" in (tmp_path / "follower.log").read_text()


def test_while_its_place_is_taken_it_tries_again(tmp_path):
    async def visit(lead, process):
        await meet(lead)
        assert (lead.refuses, process.poll()) == (0, None)

    lead = HandMadeLead(refuses=2)
    follow(tmp_path, visit, make_job(nodes=2), lead=lead, _REFUSED_RETRY_S=0.05)
    assert "node 1 is here already" in (tmp_path / "follower.log").read_text()


def test_told_to_stop_it_says_so_and_ends_its_ranks(tmp_path):
    async def visit(lead, process):
        peer = await meet(lead)
        peer.say("has", files={})
        start(peer)
        pid = await find_pid(peer)
        process.send_signal(signal.SIGTERM)
        await until(lambda: peer.find("leaving"), "it says that it leaves")
        assert peer.find("leaving")["why"] == "it received SIGTERM"
        assert await ended(process) == 143
        assert not is_running(pid)

    follow(tmp_path, visit, make_job(nodes=2, work=SLEEP))


def test_it_renumbers_its_ranks_with_the_world(tmp_path):
    """Of three nodes only two take part, and node 1 is the first of them."""
    work = Command(argv=("sh", "-c", "echo $RANK of $WORLD_SIZE on $GROUP_RANK"))

    async def visit(lead, _process):
        peer = await meet(lead)
        peer.say("has", files={})
        order = {"attempt": 2, "nodes": [1, 2], "address": "127.0.0.1", "port": 1}
        peer.say("start", has_store=False, **order)
        path = "attempt-2/rank-0.log"
        await until(lambda: peer.files().get(path, b"").endswith(b"\n"), "its line")
        assert peer.files()[path].endswith(b" F 0 of 2 on 0\n")

    follow(tmp_path, visit, make_job(nodes=3, work=work))


def test_a_lead_that_never_comes(tmp_path):
    async def run(listener):
        port = listener.port
        listener.close()
        plan = make_job(nodes=2, join_timeout_s=0.5)
        with follower_process(tmp_path, plan, port) as process:
            assert await ended(process) == 1

    run_with_lead(write_certificates(tmp_path / "tls"), run)
    assert "the lead cannot be reached" in (tmp_path / "follower.log").read_text()
