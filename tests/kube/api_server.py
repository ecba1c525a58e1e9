"""A small real HTTP server whose answers a test chooses, including errors that no healthy server gives."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from windlass.kube.client.api import Api
from windlass.kube.client.kubeconfig import read_target
from windlass.kube.client.transport import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer to one request: a status and a body, raw lines, or a dropped connection."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    lines: tuple[Any, ...] | None = None  # events of a watch, one line each
    hold: threading.Event | None = None  # keep the response open until this is set
    cut: bool = False  # read the request and close the connection


def refuse(status: int, reason: str, message: str, **headers: str) -> Answer:
    body = {"kind": "Status", "code": status, "reason": reason, "message": message}
    return Answer(status=status, body=body, headers=headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A request as the server received it."""

    method: str
    path: str
    params: dict[str, str]
    headers: dict[str, str]
    body: Any


class ApiServer(ThreadingHTTPServer):
    """HTTP server that returns its answers in order and repeats the last one."""

    daemon_threads = True

    def __init__(self, answers: list[Answer], port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.answers = answers
        self.seen: list[Seen] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def next_answer(self, seen: Seen) -> Answer:
        with self.lock:
            self.seen.append(seen)
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ApiServer

    def log_message(self, *args: object) -> None:
        """Log nothing. A failing test shows the relevant requests."""

    def _serve(self) -> None:
        url = urlsplit(self.path)
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = self.server.next_answer(
            Seen(
                method=self.command,
                path=url.path,
                params=dict(parse_qsl(url.query)),
                headers=dict(self.headers.items()),
                body=json.loads(data) if data else None,
            )
        )
        if answer.cut:
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name.replace("_", "-"), value)
        if answer.lines is None:
            body = (
                answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            )
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._stream(answer)

    def _stream(self, answer: Answer) -> None:
        for line in answer.lines or ():
            data = (line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n"
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()
        if answer.hold is not None:
            answer.hold.wait(30.0)
        try:
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True

    do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815


@contextmanager
def serve(*answers: Answer, port: int = 0) -> Iterator[ApiServer]:
    with ApiServer(list(answers), port) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10.0)


def write_kubeconfig(
    folder: Path, *, server: str, user: dict[str, Any] | None = None, **cluster: object
) -> Path:
    """Write a kubeconfig with one context, `here`. It is JSON, which is valid YAML."""
    path = folder / "kubeconfig"
    config = {
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "space"}}
        ],
    }
    path.write_text(json.dumps(config))
    return path


def connect_to(
    server: str, folder: Path, *, retry_for_s: float = 10.0, user: dict[str, Any] | None = None
) -> Api:
    """Return an Api for a server. `retry_for_s` keeps tests of refusals short."""
    environ = {"KUBECONFIG": str(write_kubeconfig(folder, server=server, user=user))}
    return Api(Transport(read_target(environ=environ), environ, retry_for_s=retry_for_s))


def read_exactly(sock: socket.socket, num_bytes: int) -> bytes:
    """Read that many bytes, or fewer if the stream ends."""
    data = bytearray()
    while len(data) < num_bytes and (part := sock.recv(num_bytes - len(data))):
        data += part
    return bytes(data)
