"""Port-forward against a real websocket server that plays the node."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

import pytest
from kube.api_server import connect_to, read_exactly, refuse, serve
from waits import wait_for
from websockets.http11 import Request, Response
from websockets.sync.server import Server, ServerConnection
from websockets.sync.server import serve as serve_websocket

from windlass.kube.client.api_errors import ClusterError, NotFound, Unauthorized, Unreachable
from windlass.kube.client.forward import PodStream

PORT = (7000).to_bytes(2, "little")
NUM_BYTES = 32 << 20


def open_channels(connection: ServerConnection) -> None:
    connection.send(b"\0" + PORT)
    connection.send(b"\1" + PORT)


@contextmanager
def play_node(handle: Callable[[ServerConnection], None]) -> Iterator[str]:
    """Serve a node that forwards to `handle`, and yield the server's address."""

    def opened(connection: ServerConnection) -> None:
        open_channels(connection)
        handle(connection)

    with _serving(opened) as server:
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"


@contextmanager
def _serving(handle: Callable[[ServerConnection], None]) -> Iterator[Server]:
    with serve_websocket(
        handle, "127.0.0.1", 0, subprotocols=["v4.channel.k8s.io"], compression=None
    ) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10.0)


def echo(connection: ServerConnection) -> None:
    for message in connection:
        connection.send(message)


def read_all(sock: socket.socket) -> bytes:
    sock.settimeout(20.0)
    return b"".join(iter(lambda: sock.recv(1 << 20), b""))


def test_bytes_are_forwarded_both_ways(tmp_path: Path) -> None:
    with play_node(echo) as url, connect_to(url, tmp_path).forward("a", 7000) as sock:
        sock.settimeout(10.0)
        for size in (1, 2, 200, 65_536):
            sock.sendall(b"x" * size)
            assert read_exactly(sock, size) == b"x" * size


def test_socket_ends_when_the_pod_closes(tmp_path: Path) -> None:
    def send_and_close(connection: ServerConnection) -> None:
        connection.send(b"\0last words")

    with play_node(send_and_close) as url, connect_to(url, tmp_path).forward("a", 7000) as sock:
        assert read_all(sock) == b"last words"


def test_pod_sees_our_close(tmp_path: Path) -> None:
    got: list[bytes] = []
    done = threading.Event()

    def read_until_close(connection: ServerConnection) -> None:
        got.extend(message[1:] for message in connection if isinstance(message, bytes))
        done.set()

    with play_node(read_until_close) as url:
        sock = connect_to(url, tmp_path).forward("a", 7000)
        sock.sendall(b"bye")
        sock.close()
        assert done.wait(10.0)
    assert b"".join(got) == b"bye"


def test_data_sent_before_close_arrives(tmp_path: Path) -> None:
    num_bytes = 5 << 20
    got: list[int] = []
    go, done = threading.Event(), threading.Event()

    def read_late(connection: ServerConnection) -> None:
        go.wait(10.0)
        got.extend(len(message) - 1 for message in connection)
        done.set()

    def write_and_close(sock: socket.socket) -> None:
        with sock:
            sock.sendall(bytes(num_bytes))

    with play_node(read_late) as url:
        sock = connect_to(url, tmp_path).forward("a", 7000)
        writer = threading.Thread(target=write_and_close, args=(sock,), daemon=True)
        writer.start()
        go.set()
        assert done.wait(20.0)
        writer.join(10.0)
    assert sum(got) == num_bytes


def test_half_closed_socket_can_still_read(tmp_path: Path) -> None:
    asked = threading.Event()

    def answer_late(connection: ServerConnection) -> None:
        connection.recv(10.0)
        asked.wait(10.0)
        connection.send(b"\0answer")

    with play_node(answer_late) as url, connect_to(url, tmp_path).forward("a", 7000) as sock:
        sock.sendall(b"question")
        sock.shutdown(socket.SHUT_WR)
        asked.set()
        assert read_all(sock) == b"answer"


def test_refused_port_closes_the_socket_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse_port(connection: ServerConnection) -> None:
        connection.send(b"\1connect: connection refused")
        connection.recv(10.0)

    caplog.set_level(logging.INFO, "windlass.kube.client.forward")
    with play_node(refuse_port) as url, connect_to(url, tmp_path).forward("a", 7000) as sock:
        assert read_all(sock) == b""
    assert "forward a port of pods/a in namespace space: connect: connection refused" in caplog.text


def test_slow_reader_throttles_the_pod(tmp_path: Path) -> None:
    sent = []
    block = b"\0" + bytes(range(256)) * 256

    def pour(connection: ServerConnection) -> None:
        for _ in range(NUM_BYTES // 65_536):
            connection.send(block)
            sent.append(65_536)

    with play_node(pour) as url, connect_to(url, tmp_path).forward("a", 7000) as sock:
        stuck_at = _wait_until_stuck(lambda: sum(sent))
        assert stuck_at < NUM_BYTES // 2
        data = read_all(sock)
    assert len(data) == NUM_BYTES
    assert (
        hashlib.sha256(data).digest() == hashlib.sha256(block[1:] * (NUM_BYTES // 65_536)).digest()
    )


def test_slow_pod_throttles_the_writer(tmp_path: Path) -> None:
    go, done = threading.Event(), threading.Event()
    got, sent = [], []

    def swallow_late(connection: ServerConnection) -> None:
        go.wait(30.0)
        for message in connection:
            got.append(len(message) - 1)
            if sum(got) == NUM_BYTES:
                done.set()

    def write(sock: socket.socket) -> None:
        for _ in range(NUM_BYTES // 65_536):
            sock.sendall(bytes(65_536))
            sent.append(65_536)

    with play_node(swallow_late) as url, connect_to(url, tmp_path).forward("a", 7000) as sock:
        writer = threading.Thread(target=write, args=(sock,), daemon=True)
        writer.start()
        stuck_at = _wait_until_stuck(lambda: sum(sent))
        assert stuck_at < NUM_BYTES // 2
        go.set()
        assert done.wait(30.0)
        writer.join(10.0)
    assert sum(sent) == NUM_BYTES


def _wait_until_stuck(read: Callable[[], int]) -> int:
    """Return the value that `read` had kept for half a second."""
    seen, num_same = -1, 0
    ticks = threading.Event()
    while num_same < 5:
        ticks.wait(0.1)
        now = read()
        seen, num_same = now, num_same + 1 if now == seen else 0
    return seen


@pytest.mark.parametrize(
    ("status", "reason", "text", "kind"),
    [
        (404, "NotFound", 'pods "a" not found', NotFound),
        (401, "Unauthorized", "Unauthorized", Unauthorized),
        (500, "InternalError", "pod is not running", ClusterError),
    ],
)
def test_refused_forward_raises_immediately(
    tmp_path: Path, status: int, reason: str, text: str, kind: type[ClusterError]
) -> None:
    with serve(refuse(status, reason, text)) as server, pytest.raises(kind, match=text):
        connect_to(server.url, tmp_path).forward("a", 7000)
    assert server.seen[0].path == "/api/v1/namespaces/space/pods/a/portforward"
    assert server.seen[0].params == {"ports": "7000"}


def test_forward_sends_the_token(tmp_path: Path) -> None:
    seen = []

    def note(_: ServerConnection, request: Request) -> Response:
        seen.append(request.headers["Authorization"])
        return Response(HTTPStatus.NOT_FOUND, "", request.headers, b"{}")

    with serve_websocket(echo, "127.0.0.1", 0, process_request=note) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        with pytest.raises(ClusterError):
            connect_to(url, tmp_path, user={"token": "mine"}).forward("a", 7000)
        server.shutdown()
        thread.join(10.0)
    assert seen == ["Bearer mine"]


def test_silent_server_times_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        api = connect_to(f"http://127.0.0.1:{mute.getsockname()[1]}", tmp_path)
        with pytest.raises(Unreachable, match=r"no answer within 0\.3 s"):
            api.forward("a", 7000, timeout_s=0.3)


def test_forward_does_not_keep_the_interpreter_alive(tmp_path: Path) -> None:
    with play_node(echo) as url:
        connect_to(url, tmp_path)
        code = (
            "from windlass.kube.client.api import connect\n"
            "sock = connect().forward('a', 7000)\nsock.sendall(b'x')\nprint(sock.recv(1).decode())"
        )
        ended = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig")},
            capture_output=True,
            text=True,
            timeout=30,
        )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "x\n", "")


def test_thread_ends_with_the_socket(tmp_path: Path) -> None:
    def count() -> int:
        return sum(thread.name.startswith("windlass-forward") for thread in threading.enumerate())

    with play_node(echo) as url:
        api = connect_to(url, tmp_path)
        sockets = [api.forward("a", 7000) for _ in range(3)]
        assert count() == 3
        for sock in sockets:
            sock.close()
        wait_for(lambda: count() == 0, "all threads ended", 10.0)


# -- without a thread ------------------------------------------------------------------------------


def open_stream(url: str, tmp_path: Path) -> contextlib.closing[PodStream]:
    return contextlib.closing(connect_to(url, tmp_path).open_stream("a", 7000))


def test_stream_forwards_bytes_both_ways(tmp_path: Path) -> None:
    with play_node(echo) as url, open_stream(url, tmp_path) as stream:
        stream.settimeout(10.0)
        for size in (1, 200, 65_536):
            stream.sendall(b"x" * size)
            got = b""
            while len(got) < size:
                got += stream.recv(1 << 20)
            assert got == b"x" * size


def test_stream_with_data_is_pending_or_readable(tmp_path: Path) -> None:
    """Buffered data shows in `pending`. After a `recv` without data, new data makes the socket readable."""
    go = threading.Event()

    def send_twice(connection: ServerConnection) -> None:
        connection.send(b"\0one")
        connection.ping()  # makes the socket readable, but is not data
        go.wait(10.0)
        connection.send(b"\0two")
        connection.recv(10.0)

    with play_node(send_twice) as url, open_stream(url, tmp_path) as stream:
        stream.settimeout(10.0)
        assert stream.recv(1) == b"o"
        assert stream.pending()
        assert stream.recv(10) == b"ne"
        stream.settimeout(0.2)
        with pytest.raises(TimeoutError):
            stream.recv(10)
        assert not stream.pending()
        go.set()
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLIN)
        assert poll.poll(10_000)
        stream.settimeout(0)
        assert stream.recv(10) == b"two"


def test_stream_ends_when_the_pod_refuses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def refuse_port(connection: ServerConnection) -> None:
        connection.send(b"\1connect: connection refused")
        connection.recv(10.0)

    caplog.set_level(logging.INFO, "windlass.kube.client.forward")
    with play_node(refuse_port) as url, open_stream(url, tmp_path) as stream:
        stream.settimeout(10.0)
        assert stream.recv(10) == b""
        assert stream.recv(10) == b""
    assert "forward a port of pods/a in namespace space: connect: connection refused" in caplog.text


def test_closed_stream_is_at_its_end(tmp_path: Path) -> None:
    with play_node(echo) as url:
        stream = connect_to(url, tmp_path).open_stream("a", 7000)
        stream.close()
        stream.close()
        assert stream.recv(1) == b""
        with pytest.raises(ConnectionResetError):
            stream.sendall(b"x")
