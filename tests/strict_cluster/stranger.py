"""A foreign pod, which is not part of a job. It tries to connect to ports on request and returns the result.

`PROGRAM` runs in the pod and is called through a port-forward, which a NetworkPolicy does not block.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from cluster_objects import make_foreign_pod
from strict_cluster.ground import Ground, wait_for

from windlass.kube.client.api import Api
from windlass.kube.objects.kinds import PODS

PORT = 8000
NAME = "stranger"
TRY_S = 3.0

PROGRAM = f"""
import json, socket, socketserver, ssl

def try_port(host, port, how):
    with socket.create_connection((host, port), {TRY_S}) as peer:
        if how == "plain":
            peer.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
        elif how == "tls":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            peer = context.wrap_socket(peer)
            peer.sendall(b"x" * 100)
        else:
            return "connected"
        return "answered" if peer.recv(100) else "hung up"

class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        asked = json.loads(self.rfile.readline())
        try:
            met = try_port(*asked)
        except ssl.SSLError as error:
            met = "tls: " + str(error.reason)
        except OSError as error:
            met = type(error).__name__
        self.wfile.write(json.dumps(met).encode() + b"\\n")

class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True

with Server(("127.0.0.1", {PORT}), Handler) as server:
    print("ready", flush=True)
    server.serve_forever()
"""


class Stranger:
    """A foreign pod in some namespace."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def try_port(self, host: str, port: int, how: str = "connect") -> str:
        """Return "connected" or the error. `plain` and `tls` also send data over the connection."""
        with self._api.forward(NAME, PORT) as sock:
            sock.settimeout(5 * TRY_S)
            sock.sendall(json.dumps([host, port, how]).encode() + b"\n")
            return str(json.loads(_read_line(sock)))


def _read_line(sock: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n") and (part := sock.recv(4096)):
        data += part
    return data


@contextmanager
def open_stranger(ground: Ground) -> Iterator[Stranger]:
    ground.api.create(PODS, make_foreign_pod(NAME, ground.image, PROGRAM))
    try:
        wait_for(lambda: _is_ready(ground.api), f"a stranger is in {ground.api.namespace}")
        yield Stranger(ground.api)
    finally:
        ground.api.delete(PODS, NAME, grace_s=0)


def _is_ready(api: Api) -> bool:
    is_running = api.get(PODS, NAME).get("status", {}).get("phase") == "Running"
    return is_running and b"ready" in api.read_log(NAME)
