"""Attack: a peer on another machine names a local file in its frame, to have it read, sent or deleted.

On one machine, large payloads are files, and frames carry their paths. Between machines payloads arrive in
parts, and a path in a frame must be ignored.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
import threading
from pathlib import Path

import pytest

from windlass import RemoteError
from windlass.agent.link.payload_parts import PartStore
from windlass.client.compute.calls.call_requests import CallRequest
from windlass.client.compute.calls.client_call import ClientCall
from windlass.client.compute.nodes.compute_connection import Connection
from windlass.errors import ProtocolError
from windlass.wire.frames import FrameDecoder, render_frame
from windlass.wire.messages.calls import AskCall
from windlass.wire.messages.computes import CallAnswer, PayloadPart


class _FalseLead(threading.Thread):
    """Other end of a connection. Welcomes the client and answers its first call with the given frames."""

    def __init__(self, connection: socket.socket, answers: list[bytes]) -> None:
        super().__init__(daemon=True)
        self._socket = connection
        self._answers = answers
        self.start()

    def run(self) -> None:
        decoder = FrameDecoder()
        with contextlib.suppress(OSError):  # the test is over and has closed the socket
            while data := self._socket.recv(1 << 16):
                for frame in decoder.feed(data):
                    if frame.type == "hello":
                        self._socket.sendall(render_frame({"type": "welcome"}))
                    elif frame.type == "call":
                        self._socket.sendall(b"".join(self._answers))


class _Home:
    """Stub of a remote compute with what a call needs."""

    is_remote = True
    spill = "/nonexistent"

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def take_connection(self, timeout_s: float | None) -> Connection:
        return self._connection

    def return_connection(self, connection: Connection) -> None:
        connection.close()

    def notify(self, what: dict) -> None:
        raise AssertionError(what)

    def report_wait(self, what: str) -> None:
        raise AssertionError(what)


@pytest.fixture
def call():
    """Yield a function that makes a call to a false lead with the given answers."""
    sockets: list[socket.socket] = []

    def make(*answers: dict) -> ClientCall:
        ours, theirs = socket.socketpair()
        sockets.extend((ours, theirs))
        _FalseLead(theirs, [render_frame(answer) for answer in answers])
        message = AskCall(id="c.1", profile="p")
        request = CallRequest(
            message=message, segments=[b"x"], profile=None, make_sync=lambda _has: None
        )
        calling = ClientCall(_Home(Connection(ours, "c")), request, lambda _rank, _data: None)
        calling.send()
        return calling

    yield make
    for end in sockets:
        end.close()


def _secret(tmp_path: Path) -> tuple[Path, int]:
    """Write a file of the client's own that is a valid pickle."""
    path = tmp_path / "secret"
    path.write_bytes(pickle.dumps("what only this machine knows"))
    return path, path.stat().st_size


def test_result_does_not_read_a_client_file(call, tmp_path):
    path, size = _secret(tmp_path)
    result = {"type": "result", "id": "c.1", "rank": 0, "state": "returned", "sizes": [size]}
    done = {"type": "done", "id": "c.1", "state": "returned", "verdict": None}
    reply = call({**result, "file": str(path)}, done).follow(wait_s=30)
    with pytest.raises(RemoteError):
        reply.value(0)
    assert path.exists()


def test_item_neither_reads_nor_deletes_a_client_file(call, tmp_path):
    path, size = _secret(tmp_path)
    item = {"type": "result", "id": "c.1", "rank": 0, "sizes": [size], "file": str(path)}
    with pytest.raises(EOFError):
        next(call(item).items(wait_s=30))
    assert path.exists()


def test_small_answers_do_not_read_a_client_file(call, tmp_path):
    path, size = _secret(tmp_path)
    answer = {"rank": 0, "state": "returned", "sizes": [size], "file": str(path)}
    results = {"type": "results", "id": "c.1", "answers": [answer], "ends": True}
    reply = call(results).follow(wait_s=30)
    with pytest.raises(RemoteError):
        reply.value(0)
    assert path.exists()


def test_between_nodes_only_received_parts_count(tmp_path):
    path, _ = _secret(tmp_path)
    store = PartStore(tmp_path, is_far=True)
    evil = CallAnswer(file=str(path), is_ours=True)
    assert store.with_file(evil) == CallAnswer(is_ours=False)
    store.take(PayloadPart(payload=str(path)), b"parts")
    answer = store.with_file(evil.replaced(payload=str(path)))
    assert Path(answer.file).read_bytes() == b"parts"
    assert answer.file != str(path)
    with pytest.raises(ProtocolError):
        store.with_file(evil.replaced(payload="never came"))


def test_on_one_machine_paths_are_kept(tmp_path):
    path, _ = _secret(tmp_path)
    store = PartStore(tmp_path, is_far=False)
    answer = CallAnswer(file=str(path))
    assert store.with_file(answer.replaced(is_ours=True)) == answer
