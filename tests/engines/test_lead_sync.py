"""The connection to a lead over real TLS: a folder is copied to the client, and the connection breaks."""

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
from windlass.engines.cluster import lead_sync
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
    """A client's folder, and the LeadSync that fills it."""

    def __init__(self, scene, tmp_path, *, make=LeadSync, job_id=JOB):
        self.folder = JobFolder(tmp_path / "client")
        self.folder.path.mkdir(exist_ok=True)
        self.scene = scene
        self.num_dials = 0
        # returned by the next dials instead of a connection to the lead
        self.dials: list[object] = []
        self.sync = make(job_id, self.folder, self.dial)

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
        """Break the connection, as a failing port-forward does."""
        for link in list(self.scene.lead_server._links):
            link._transport.abort()

    async def close(self):
        await asyncio.to_thread(self.sync.close)
        assert not self.sync._thread.is_alive()


def run_with_client(tmp_path, visit, plan=None, **about):
    """Start a lead server, connect a client to it and run `visit(scene, client)`."""
    is_ready = about.pop("is_ready", True)

    async def run(scene):
        client = Client(scene, tmp_path, **about)
        try:
            await visit(scene, client)
        finally:
            await client.close()

    run_lead_server(tmp_path, run, plan, is_ready=is_ready)


# -- copying -------------------------------------------------------------------------------------


def test_folder_is_copied_from_the_lead(tmp_path):
    async def visit(scene, client):
        await until(lambda: client.sync.is_up, "the client is connected")
        put(scene.folder, names.STATUS_FILE, RUNNING)
        add(scene.folder, LOG, b"one\n")
        await until(lambda: client.read(LOG) == b"one\n", "the first line")
        add(scene.folder, LOG, b"two\n" * 500_000)
        put(scene.folder, RESULT, b"v" * 3_000_000)
        put(scene.folder, names.STATUS_FILE, SUCCEEDED)
        await until(lambda: client.read(names.STATUS_FILE) == SUCCEEDED, "the last status")
        assert read_all(client.folder) == read_all(scene.folder)
        assert client.sync.is_synced.is_set()
        await until(lambda: not scene.lead_server._readers, "who has read all hangs up by itself")
        await until(lambda: not client.sync._thread.is_alive(), "its thread ends too")
        assert client.num_dials == 1

    run_with_client(tmp_path, visit)


def test_client_reconnects_after_every_break(tmp_path):
    """Nothing that was written in between is lost or duplicated."""
    draw = random.Random(0)

    async def visit(scene, client):
        for number in range(12):
            await until(lambda: scene.lead_server._readers, "the client is connected")
            add(scene.folder, LOG, b"%d " % number * draw.randrange(1, 40_000))
            put(scene.folder, f"attempt-{number % 3}/rank-{number}.result", b"%d" % number)
            for _ in range(draw.randrange(4)):
                await asyncio.sleep(0)
            client.cut()
            await until(lambda: not scene.lead_server._readers, "the client is disconnected")
        put(scene.folder, names.STATUS_FILE, SUCCEEDED)
        await until(lambda: client.read(names.STATUS_FILE) == SUCCEEDED, "the last status")
        assert read_all(client.folder) == read_all(scene.folder)
        assert client.num_dials == 13

    run_with_client(tmp_path, visit)


def test_second_client_of_the_folder_resumes(tmp_path):
    async def visit(scene, client):
        add(scene.folder, LOG, b"one\n")
        put(scene.folder, names.STATUS_FILE, RUNNING)
        await until(client.sync.is_synced.is_set, "a status")
        await client.close()
        add(scene.folder, LOG, b"two\n")
        put(scene.folder, names.STATUS_FILE, SUCCEEDED)
        again = Client(scene, tmp_path)
        await until(lambda: again.read(names.STATUS_FILE) == SUCCEEDED, "the last status")
        assert again.read(LOG) == b"one\ntwo\n"
        await again.close()

    run_with_client(tmp_path, visit)


def test_client_retries_while_there_is_no_lead(tmp_path):
    async def visit(scene, client):
        await until(lambda: client.sync.is_up, "the client is connected")
        client.dials += [None, OSError("no route"), EngineError("no such pod"), None]
        client.cut()
        await until(lambda: client.num_dials == 6 and client.sync.is_up, "it is up again")
        add(scene.folder, LOG, b"one\n")
        await until(lambda: client.read(LOG) == b"one\n", "it copies")

    run_with_client(tmp_path, visit)


def test_silent_lead_is_dialed_again(tmp_path, monkeypatch):
    monkeypatch.setattr(agent_link, "HEARTBEAT_S", 600.0)
    monkeypatch.setattr(lead_sync, "_SILENCE_S", 0.3)

    async def visit(_scene, client):
        await until(lambda: client.num_dials >= 2, "it dials again")

    run_with_client(tmp_path, visit)


def test_is_up_is_false_during_a_break(tmp_path):
    async def visit(_scene, client):
        await until(lambda: client.sync.is_up, "the client is connected")
        client.dials += [OSError("no route")] * 1000
        client.cut()
        await until(lambda: not client.sync.is_up, "the client is disconnected")
        client.dials.clear()
        await until(lambda: client.sync.is_up, "the client is connected again")

    run_with_client(tmp_path, visit)


def test_full_disk_is_reported_and_copying_resumes(tmp_path, monkeypatch, caplog, room):
    monkeypatch.setattr(lead_sync, "_NO_ROOM_PAUSE_S", 0.01)

    async def visit(scene, client):
        await until(lambda: client.sync.is_up, "the client is connected")
        put(scene.folder, RESULT, b"v" * 3_000_000)
        room(1_500_000)
        put(scene.folder, names.STATUS_FILE, SUCCEEDED)
        await until(lambda: client.sync.cannot_keep is not None, "the full disk is reported")
        error = client.sync.cannot_keep
        assert error.message == f"cannot write to {tmp_path}/client: File too large"
        assert names.HOME in error.hint
        await until(lambda: client.num_dials > 3, "it tries again")
        assert caplog.text.count("cannot write to") == 1
        # this status would mean that everything was copied
        assert client.read(names.STATUS_FILE) != SUCCEEDED
        room(None)
        await until(lambda: client.read(names.STATUS_FILE) == SUCCEEDED, "the last status")
        assert client.read(RESULT) == b"v" * 3_000_000
        await until(lambda: client.sync.cannot_keep is None, "nothing is missing any more")
        assert not list(client.folder.path.rglob("*.part"))

    run_with_client(tmp_path, visit)


def test_lead_learns_that_everything_was_read(tmp_path):
    async def visit(scene, client):
        await until(lambda: client.sync.is_up, "the client is connected")
        put(scene.folder, names.STATUS_FILE, RUNNING)
        await until(client.sync.is_synced.is_set, "a status")
        assert not scene.lead_server._is_read
        put(scene.folder, RESULT, b"v" * 3_000_000)
        put(scene.folder, names.STATUS_FILE, SUCCEEDED)
        await until(lambda: scene.lead_server._is_read, "the lead knows")
        assert client.read(RESULT) == b"v" * 3_000_000

    run_with_client(tmp_path, visit)


def test_unreachable_is_set_until_the_lead_answers(tmp_path):
    async def visit(_scene, client):
        await until(lambda: client.sync.is_up, "the client is connected")
        client.dials += [Unreachable("cannot reach it: connection refused")] * 3
        client.cut()
        await until(lambda: client.sync.unreachable is not None, "the lead is unreachable")
        assert client.sync.unreachable.message == "cannot reach it: connection refused"
        await until(lambda: client.sync.is_up, "the client is connected again")
        assert client.sync.unreachable is None

    run_with_client(tmp_path, visit)


# -- orders --------------------------------------------------------------------------------------


@pytest.mark.parametrize("now", [False, True])
def test_cancelling(tmp_path, now):
    async def visit(scene, client):
        client.sync.cancel(now=now, why="enough")  # whether it is connected by now or not
        await until(lambda: scene.lead.stop.is_requested, "the lead has the order")
        stop = scene.lead.stop.verdict
        assert (stop.kind, stop.message, scene.lead.stop.now) == (
            FailureKind.CANCELLED,
            "enough",
            now,
        )

    run_with_client(tmp_path, visit)


def test_order_survives_a_broken_connection(tmp_path):
    class BreaksOnce(LeadSync):
        has_broken = False

        def _send(self, connection, message, body=b""):
            if message.kind == "cancel" and not self.has_broken:
                self.has_broken = True
                raise OSError("the connection broke just now")
            LeadSync._send(connection, message, body)

    async def visit(scene, client):
        await until(lambda: client.sync.is_up, "the client is connected")
        client.sync.cancel(now=False, why="enough")
        await until(lambda: scene.lead.stop.is_requested, "the lead has the order")
        assert client.num_dials == 2

    run_with_client(tmp_path, visit, make=BreaksOnce)


def test_order_arrives_although_the_client_hangs_up(tmp_path):
    """A busy lead may write before it reads. A write into a closed socket ends a link."""

    async def visit(scene, client):
        await until(lambda: client.sync.is_up, "the client is connected")
        client.sync.cancel(now=False, why="and goodbye")
        client.sync.let_go()
        client.sync._thread.join(0.5)  # blocks the event loop, so the lead is busy during this time
        for _ in range(3):
            for link in scene.lead_server._links:
                link.send({"type": "heartbeat"})
        await until(lambda: scene.lead.stop.is_requested, "the lead has the order")
        assert scene.lead.stop.verdict.message == "and goodbye"

    run_with_client(tmp_path, visit)


def relay(port):
    """Return a connection that, like a port-forward, does not forward the client's end of stream."""
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


def test_lead_notices_a_hangup_through_a_port_forward(tmp_path, monkeypatch):
    monkeypatch.setattr(lead_sync, "_FINISH_S", 600.0)

    async def visit(scene, client):
        await until(lambda: client.sync.is_up, "the client is connected")
        client.dials.append(relay(scene.port))
        client.cut()
        await until(lambda: client.num_dials == 2 and client.sync.is_up, "it is up again")
        client.sync.let_go()
        await until(
            lambda: not scene.lead_server._readers, "the lead knows that the client is gone"
        )
        await until(lambda: not client.sync._thread.is_alive(), "its thread has ended")

    run_with_client(tmp_path, visit)


def test_lease_survives_breaks_and_is_released_at_the_end(tmp_path):
    async def visit(scene, client):
        client.sync.hold_lease(True)
        await until(lambda: scene.lead_server._num_leases == 1, "the client holds a lease")
        client.cut()
        await until(lambda: client.num_dials > 1 and client.sync.is_up, "the client is reconnected")
        await until(lambda: scene.lead_server._num_leases == 1, "the client still holds one lease")
        client.sync.hold_lease(False)
        await until(lambda: scene.lead_server._num_leases == 0, "the lease is released")
        client.sync.hold_lease(True)
        await until(lambda: scene.lead_server._num_leases == 1, "the client holds a lease again")
        await client.close()
        await until(
            lambda: scene.lead_server._num_leases == 0, "the lease ended with the connection"
        )

    run_with_client(tmp_path, visit)


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
        await until(lambda: client.num_dials > 1 and client.sync.is_up, "the client is reconnected")
        assert scene.folder.payload.read_bytes() == data

    run_with_client(tmp_path, visit, make_plan_with(data), is_ready=False)


def test_reason_of_a_refusal_is_logged(tmp_path, caplog):
    (tmp_path / "client").mkdir()
    (tmp_path / "client" / names.PAYLOAD_FILE).write_bytes(b"changed since")

    async def visit(_scene, client):
        await until(lambda: client.num_dials > 1, "it was refused, and tries again")
        assert "payload.pkl differs from the one in the plan" in caplog.text

    run_with_client(tmp_path, visit, make_plan_with(b"as planned"), is_ready=False)


# -- the end -------------------------------------------------------------------------------------


def test_close_does_not_wait_for_a_lead(tmp_path):
    async def visit(_scene, client):
        client.dials += [None] * 1000
        client.cut()
        await client.close()

    run_with_client(tmp_path, visit)
