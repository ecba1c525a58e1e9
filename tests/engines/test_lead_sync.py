"""The line to a lead: a real door behind real TLS, a folder that becomes the same, and breaks in between."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import socket
import threading

import pytest
from pod_connections import make_job, run_lead_server
from tls_peers import JOB, connect_lead, secure, until

from windlass import names
from windlass.agent.link import agent_link
from windlass.engines.cluster import lead_sync as lines
from windlass.engines.cluster.lead_sync import LeadSync
from windlass.errors import EngineError
from windlass.kube.client.api_errors import Unreachable
from windlass.plan.plan import Input
from windlass.wire.file_sync import find_files
from windlass.wire.job_folder import JobFolder, write_atomically
from windlass.wire.status import FailureKind, JobStatus, Phase, render_status

LOG, RESULT = "attempt-0/rank-0.log", "attempt-0/rank-1.result"
RUNNING, SUCCEEDED = (
    render_status(JobStatus(job_id=JOB, name="train", engine="local", work="f", phase=phase))
    for phase in (Phase.RUNNING, Phase.SUCCEEDED)
)


def put(folder, path, data):
    (folder.path / path).parent.mkdir(exist_ok=True)
    write_atomically(folder.path / path, data)


def add(folder, path, data):
    (folder.path / path).parent.mkdir(exist_ok=True)
    with (folder.path / path).open("ab") as file:
        file.write(data)


def read_all(folder):
    return {path: (folder.path / path).read_bytes() for path in find_files(folder)}


class Client:
    """A client's folder, and the line that fills it."""

    def __init__(self, scene, tmp_path, *, make=LeadSync, job_id=JOB):
        self.folder = JobFolder(tmp_path / "client")
        self.folder.path.mkdir(exist_ok=True)
        self.scene = scene
        self.num_dials = 0
        self.dials: list[object] = []  # what the next ones get instead of the lead
        self.line = make(job_id, self.folder, self.dial)

    def dial(self):
        self.num_dials += 1
        if self.dials:
            found = self.dials.pop(0)
            if isinstance(found, Exception):
                raise found
            return found and secure(found, self.scene.files)
        return connect_lead(self.scene.port, self.scene.files)

    def read(self, path):
        with contextlib.suppress(FileNotFoundError):
            return (self.folder.path / path).read_bytes()
        return None

    def cut(self):
        """As a port-forward that breaks."""
        for link in list(self.scene.lead_server._links):
            link._transport.abort()

    async def close(self):
        await asyncio.to_thread(self.line.close)
        assert not self.line._thread.is_alive()


def on_line(tmp_path, visit, plan=None, **about):
    """Open a door, connect a client to it, and let `visit(scene, client)` happen."""
    is_ready = about.pop("is_ready", True)

    async def run(scene):
        client = Client(scene, tmp_path, **about)
        try:
            await visit(scene, client)
        finally:
            await client.close()

    run_lead_server(tmp_path, run, plan, is_ready=is_ready)


# -- copying -------------------------------------------------------------------------------------


def test_the_folder_becomes_the_leads(tmp_path):
    async def visit(scene, client):
        await until(lambda: client.line.is_up, "the line is up")
        put(scene.folder, names.STATUS_FILE, RUNNING)
        add(scene.folder, LOG, b"one\n")
        await until(lambda: client.read(LOG) == b"one\n", "the first line")
        add(scene.folder, LOG, b"two\n" * 500_000)
        put(scene.folder, RESULT, b"v" * 3_000_000)
        put(scene.folder, names.STATUS_FILE, SUCCEEDED)
        await until(lambda: client.read(names.STATUS_FILE) == SUCCEEDED, "the last status")
        assert read_all(client.folder) == read_all(scene.folder)
        assert client.line.is_synced.is_set()
        await until(lambda: not scene.lead_server._readers, "who has read all hangs up by itself")
        await until(lambda: not client.line._thread.is_alive(), "its thread ends too")
        assert client.num_dials == 1

    on_line(tmp_path, visit)


def test_it_comes_back_after_every_break(tmp_path):
    """Whatever was written meanwhile: nothing is lost, nothing comes twice."""
    draw = random.Random(0)

    async def visit(scene, client):
        for number in range(12):
            await until(lambda: scene.lead_server._readers, "it is here")
            add(scene.folder, LOG, b"%d " % number * draw.randrange(1, 40_000))
            put(scene.folder, f"attempt-{number % 3}/rank-{number}.result", b"%d" % number)
            for _ in range(draw.randrange(4)):
                await asyncio.sleep(0)
            client.cut()
            await until(lambda: not scene.lead_server._readers, "it is gone")
        put(scene.folder, names.STATUS_FILE, SUCCEEDED)
        await until(lambda: client.read(names.STATUS_FILE) == SUCCEEDED, "the last status")
        assert read_all(client.folder) == read_all(scene.folder)
        assert client.num_dials == 13

    on_line(tmp_path, visit)


def test_a_second_client_of_the_folder_goes_on_where_the_first_was(tmp_path):
    async def visit(scene, client):
        add(scene.folder, LOG, b"one\n")
        put(scene.folder, names.STATUS_FILE, RUNNING)
        await until(client.line.is_synced.is_set, "a status")
        await client.close()
        add(scene.folder, LOG, b"two\n")
        put(scene.folder, names.STATUS_FILE, SUCCEEDED)
        again = Client(scene, tmp_path)
        await until(lambda: again.read(names.STATUS_FILE) == SUCCEEDED, "the last status")
        assert again.read(LOG) == b"one\ntwo\n"
        await again.close()

    on_line(tmp_path, visit)


def test_while_there_is_no_lead_it_tries_on(tmp_path):
    async def visit(scene, client):
        await until(lambda: client.line.is_up, "the line is up")
        client.dials += [None, OSError("no route"), EngineError("no such pod"), None]
        client.cut()
        await until(lambda: client.num_dials == 6 and client.line.is_up, "it is up again")
        add(scene.folder, LOG, b"one\n")
        await until(lambda: client.read(LOG) == b"one\n", "it copies")

    on_line(tmp_path, visit)


def test_a_lead_that_falls_silent_is_dialled_again(tmp_path, monkeypatch):
    monkeypatch.setattr(agent_link, "HEARTBEAT_S", 600.0)
    monkeypatch.setattr(lines, "_SILENCE_S", 0.3)

    async def visit(_scene, client):
        await until(lambda: client.num_dials >= 2, "it dials again")

    on_line(tmp_path, visit)


def test_it_is_not_up_while_it_is_down(tmp_path):
    async def visit(_scene, client):
        await until(lambda: client.line.is_up, "the line is up")
        client.dials += [OSError("no route")] * 1000
        client.cut()
        await until(lambda: not client.line.is_up, "the line is down")
        client.dials.clear()
        await until(lambda: client.line.is_up, "the line is up again")

    on_line(tmp_path, visit)


def test_what_does_not_fit_here_is_told_and_comes_once_there_is_room(
    tmp_path, monkeypatch, caplog, room
):
    monkeypatch.setattr(lines, "_NO_ROOM_PAUSE_S", 0.01)

    async def visit(scene, client):
        await until(lambda: client.line.is_up, "the line is up")
        put(scene.folder, RESULT, b"v" * 3_000_000)
        room(1_500_000)
        put(scene.folder, names.STATUS_FILE, SUCCEEDED)
        await until(lambda: client.line.cannot_keep is not None, "it says what it lacks")
        error = client.line.cannot_keep
        assert error.message == f"cannot write to {tmp_path}/client: File too large"
        assert names.HOME in error.hint
        await until(lambda: client.num_dials > 3, "it tries again")
        assert caplog.text.count("cannot write to") == 1
        assert client.read(names.STATUS_FILE) != SUCCEEDED  # which would say that all is here
        room(None)
        await until(lambda: client.read(names.STATUS_FILE) == SUCCEEDED, "the last status")
        assert client.read(RESULT) == b"v" * 3_000_000
        await until(lambda: client.line.cannot_keep is None, "nothing is missing any more")
        assert not list(client.folder.path.rglob("*.part"))

    on_line(tmp_path, visit)


def test_the_lead_is_told_that_all_was_read(tmp_path):
    async def visit(scene, client):
        await until(lambda: client.line.is_up, "the line is up")
        put(scene.folder, names.STATUS_FILE, RUNNING)
        await until(client.line.is_synced.is_set, "a status")
        assert not scene.lead_server._is_read
        put(scene.folder, RESULT, b"v" * 3_000_000)
        put(scene.folder, names.STATUS_FILE, SUCCEEDED)
        await until(lambda: scene.lead_server._is_read, "the lead knows")
        assert client.read(RESULT) == b"v" * 3_000_000

    on_line(tmp_path, visit)


def test_that_nobody_answers_is_known_until_somebody_does(tmp_path):
    async def visit(_scene, client):
        await until(lambda: client.line.is_up, "the line is up")
        client.dials += [Unreachable("cannot reach it: connection refused")] * 3
        client.cut()
        await until(lambda: client.line.unreachable is not None, "nobody answers")
        assert client.line.unreachable.message == "cannot reach it: connection refused"
        await until(lambda: client.line.is_up, "the line is up again")
        assert client.line.unreachable is None

    on_line(tmp_path, visit)


# -- orders --------------------------------------------------------------------------------------


@pytest.mark.parametrize("now", [False, True])
def test_cancelling(tmp_path, now):
    async def visit(scene, client):
        client.line.cancel(now=now, why="enough")  # whether it is up by now or not
        await until(lambda: scene.lead.stop.is_asked, "the lead has heard")
        stop = scene.lead.stop.verdict
        assert (stop.kind, stop.message, scene.lead.stop.now) == (
            FailureKind.CANCELLED,
            "enough",
            now,
        )

    on_line(tmp_path, visit)


def test_an_order_is_not_lost_with_the_connection(tmp_path):
    class BreaksOnce(LeadSync):
        has_broken = False

        def _send(self, connection, message, body=b""):
            if message.kind == "cancel" and not self.has_broken:
                self.has_broken = True
                raise OSError("the connection broke just now")
            LeadSync._send(connection, message, body)

    async def visit(scene, client):
        await until(lambda: client.line.is_up, "the line is up")
        client.line.cancel(now=False, why="enough")
        await until(lambda: scene.lead.stop.is_asked, "the lead has heard")
        assert client.num_dials == 2

    on_line(tmp_path, visit, make=BreaksOnce)


def test_what_was_ordered_is_heard_though_it_hangs_up(tmp_path):
    """Also by a lead that is busy, and speaks before it listens: a write into a closed socket ends a link."""

    async def visit(scene, client):
        await until(lambda: client.line.is_up, "the line is up")
        client.line.cancel(now=False, why="and goodbye")
        client.line.let_go()
        client.line._thread.join(0.5)  # the loop stands still: the lead is busy for so long
        for _ in range(3):
            for link in scene.lead_server._links:
                link.send({"type": "heartbeat"})
        await until(lambda: scene.lead.stop.is_asked, "the lead has heard")
        assert scene.lead.stop.verdict.message == "and goodbye"

    on_line(tmp_path, visit)


def relay(port):
    """A way to the lead that passes on everything but the end of what we send, as a port-forward does."""
    ours, theirs = socket.socketpair()
    far = socket.create_connection(("127.0.0.1", port), timeout=20)

    def carry(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with contextlib.suppress(OSError):
            theirs.shutdown(socket.SHUT_RDWR)
        source.close()

    for ends in ((theirs, far), (far, theirs)):
        threading.Thread(target=carry, args=ends, daemon=True).start()
    return ours


def test_the_lead_hears_that_it_hangs_up_through_a_port_forward(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "_FINISH_S", 600.0)

    async def visit(scene, client):
        await until(lambda: client.line.is_up, "the line is up")
        client.dials.append(relay(scene.port))
        client.cut()
        await until(lambda: client.num_dials == 2 and client.line.is_up, "it is up again")
        client.line.let_go()
        await until(lambda: not scene.lead_server._readers, "the lead has heard that it is gone")
        await until(lambda: not client.line._thread.is_alive(), "its thread has ended")

    on_line(tmp_path, visit)


def test_a_lease_is_held_through_breaks_and_let_go_in_the_end(tmp_path):
    async def visit(scene, client):
        client.line.hold_lease(True)
        await until(lambda: scene.lead_server._num_leases == 1, "it holds a lease")
        client.cut()
        await until(lambda: client.num_dials > 1 and client.line.is_up, "it has come back")
        await until(lambda: scene.lead_server._num_leases == 1, "it still holds it, once")
        client.line.hold_lease(False)
        await until(lambda: scene.lead_server._num_leases == 0, "it has let go")
        client.line.hold_lease(True)
        await until(lambda: scene.lead_server._num_leases == 1, "it holds it again")
        await client.close()
        await until(lambda: scene.lead_server._num_leases == 0, "it has let go with the line")

    on_line(tmp_path, visit)


# -- inputs --------------------------------------------------------------------------------------


def make_plan_with(data):
    digest = hashlib.sha256(data).hexdigest()
    return make_job(inputs=(Input(name=names.PAYLOAD_FILE, size_bytes=len(data), sha256=digest),))


def test_inputs_are_sent_to_a_lead_that_wants_them(tmp_path):
    data = random.Random(0).randbytes(3_000_000)
    (tmp_path / "client").mkdir()
    (tmp_path / "client" / names.PAYLOAD_FILE).write_bytes(data)

    async def visit(scene, client):
        await until(lambda: scene.lead.nodes.prepared() == [0], "the lead is prepared")
        assert scene.folder.payload.read_bytes() == data
        client.cut()
        await until(lambda: client.num_dials > 1 and client.line.is_up, "it has come back")
        assert scene.folder.payload.read_bytes() == data

    on_line(tmp_path, visit, make_plan_with(data), is_ready=False)


def test_why_it_was_refused_is_said(tmp_path, caplog):
    (tmp_path / "client").mkdir()
    (tmp_path / "client" / names.PAYLOAD_FILE).write_bytes(b"changed since")

    async def visit(_scene, client):
        await until(lambda: client.num_dials > 1, "it was refused, and tries again")
        assert "payload.pkl is not the one that was planned" in caplog.text

    on_line(tmp_path, visit, make_plan_with(b"as planned"), is_ready=False)


# -- the end -------------------------------------------------------------------------------------


def test_closing_does_not_wait_for_a_lead(tmp_path):
    async def visit(_scene, client):
        client.dials += [None] * 1000
        client.cut()
        await client.close()

    on_line(tmp_path, visit)
