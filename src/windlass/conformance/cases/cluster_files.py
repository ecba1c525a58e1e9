"""Files that pods and a test can both access: a claim, and a small server in a pod that mounts it.

`SERVER` is the program in the pod. `Files` is its client in the test, connected by port-forward. It works on
every cluster and from any machine, because it uses no paths of the host.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable
from urllib.parse import quote

PORT = 8000
ROOT = "/shared"

SERVER = f"""
import http.server, json, pathlib, urllib.parse

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def path_of(self):
        return pathlib.Path("{ROOT}" + urllib.parse.unquote(self.path))

    def do_PUT(self):
        data = self.rfile.read(int(self.headers["Content-Length"]))
        path = self.path_of()
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name("." + path.name)
        beside.write_bytes(data)
        beside.rename(path)
        self.answer(200)

    def do_GET(self):
        path = self.path_of()
        if path.is_dir():
            self.answer(200, json.dumps(sorted(p.name for p in path.iterdir())).encode())
        elif path.exists():
            self.answer(200, path.read_bytes())
        else:
            self.answer(404)

    def answer(self, code, body=b""):
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", {PORT}), Handler)
print("ready", flush=True)
server.serve_forever()
"""


class Files:
    """Client that reads and writes files of the claim below `ROOT`, from outside the cluster."""

    def __init__(self, dial: Callable[[], socket.socket]) -> None:
        self._connection = _Connection(dial)

    def write(self, path: str, data: bytes = b"") -> None:
        code, _ = self._ask("PUT", path, data)
        assert code == 200, f"writing {path}: {code}"

    def read(self, path: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""
        code, body = self._ask("GET", path)
        return body if code == 200 else None

    def list(self, path: str) -> list[str]:
        found = self.read(path)
        return [] if found is None else json.loads(found)

    def close(self) -> None:
        self._connection.close()

    def _ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        try:
            return self._ask_once(method, path, body)
        except (OSError, http.client.HTTPException):
            # an idle forward may have closed, and every request here is safe to repeat
            self._connection.close()
            return self._ask_once(method, path, body)

    def _ask_once(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        self._connection.request(method, quote(path), body)
        answer = self._connection.getresponse()
        return answer.status, answer.read()


class _Connection(http.client.HTTPConnection):
    """HTTP over a socket that `dial` opens."""

    def __init__(self, dial: Callable[[], socket.socket]) -> None:
        super().__init__("pod", PORT)
        self._dial = dial

    def connect(self) -> None:
        self.sock = self._dial()
        self.sock.settimeout(20.0)
