"""Connections to a real lead through a port-forward, with a websocket server that plays the node."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

import pytest
from kube.api_server import connect_to
from kube.test_forward import play_node
from pod_connections import run_lead_server
from tls_peers import until
from websockets.exceptions import WebSocketException

from windlass.engines.cluster.lead_connection import LeadDial
from windlass.engines.cluster.lead_sync import LeadSync
from windlass.wire.job_folder import JobFolder

POD = {"metadata": {"name": "lead", "uid": "u", "creationTimestamp": "2026-01-31T12:00:00Z"}}


class Node:
    """Node that forwards each websocket to the lead. `cut` breaks all connections, even within a frame."""

    def __init__(self, port):
        self.port = port
        self.num_forwards = 0
        self.limit_bytes = 0  # a forward breaks after this much data to the client, 0 for no limit
        self._open = []

    def forward(self, websocket):
        self.num_forwards += 1
        self._open.append(websocket.socket)
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as far:
            back = threading.Thread(target=self._carry_back, args=(far, websocket))
            back.start()
            with contextlib.suppress(OSError, WebSocketException):
                for message in websocket:
                    far.sendall(message[1:])
            with contextlib.suppress(OSError):
                far.shutdown(socket.SHUT_RDWR)
            back.join(20)

    def _carry_back(self, far, websocket):
        left = self.limit_bytes
        with contextlib.suppress(OSError, WebSocketException):
            while data := far.recv(16_000):
                websocket.send(b"\0" + data)
                left -= len(data)
                if self.limit_bytes and left <= 0:
                    websocket.socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError, WebSocketException):
            websocket.close()

    def cut(self):
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def run_through_node(tmp_path, visit):
    """Run `visit(scene, node, sync)` while a client follows the lead through a node."""

    async def run(scene):
        node = Node(scene.port)
        keys = {path.name: path.read_bytes() for path in scene.files.iterdir()}
        folder = JobFolder(tmp_path / "client")
        folder.path.mkdir()
        with play_node(node.forward) as url:
            api = connect_to(url, tmp_path)
            sync = LeadSync(
                scene.plan.job_id,
                folder,
                LeadDial(api, scene.plan.job_id, keys, lambda: [POD]).dial,
            )
            try:
                await visit(scene, node, sync)
            finally:
                await asyncio.to_thread(sync.close)
                node.cut()
            assert not sync._thread.is_alive()

    run_lead_server(tmp_path, run)


def read_log(tmp_path):
    with contextlib.suppress(FileNotFoundError):
        return JobFolder(tmp_path / "client").log(0, 0).read_bytes()
    return b""


def test_output_is_complete_through_a_port_forward(tmp_path):
    data = bytes(range(256)) * 20_000

    async def visit(scene, node, sync):
        await until(lambda: sync.is_up, "it is connected")
        scene.folder.make_attempt(0)
        scene.folder.log(0, 0).write_bytes(data)
        await until(lambda: read_log(tmp_path) == data, "all of the output")
        sync.cancel(now=False, why="enough")
        await until(lambda: scene.lead.stop.is_requested, "the lead got the order")
        assert node.num_forwards == 1

    run_through_node(tmp_path, visit)


def test_forward_that_breaks_within_a_frame_loses_nothing(tmp_path):
    data = bytes(range(256)) * 20_000

    async def visit(scene, node, sync):
        await until(lambda: sync.is_up, "it is connected")
        node.limit_bytes = 1_500_000
        node.cut()
        scene.folder.make_attempt(0)
        scene.folder.log(0, 0).write_bytes(data)
        await until(lambda: read_log(tmp_path) == data, "all of the output")
        assert node.num_forwards > 2

    run_through_node(tmp_path, visit)


def test_lead_notices_a_released_client(tmp_path):
    async def visit(scene, _node, sync):
        await until(lambda: scene.lead_server._readers, "the lead has a reader")
        sync.let_go()
        await until(lambda: not scene.lead_server._readers, "the lead knows that it is gone")
        await until(lambda: not sync._thread.is_alive(), "its thread has ended")

    run_through_node(tmp_path, visit)


def test_no_connection_without_a_lead(tmp_path):
    async def run(scene):
        keys = {path.name: path.read_bytes() for path in scene.files.iterdir()}
        api = connect_to("http://127.0.0.1:1", tmp_path)
        assert LeadDial(api, scene.plan.job_id, keys, list).dial() is None

    run_lead_server(tmp_path, run)


@pytest.mark.parametrize("num_bytes", [0, 3])
def test_pod_that_hangs_up_raises(tmp_path, num_bytes):
    def hang_up(websocket):
        if num_bytes:
            websocket.send(b"\0" + bytes(num_bytes))

    async def run(scene):
        keys = {path.name: path.read_bytes() for path in scene.files.iterdir()}
        with play_node(hang_up) as url:
            api = connect_to(url, tmp_path)
            dial = LeadDial(api, scene.plan.job_id, keys, lambda: [POD])
            with pytest.raises(OSError):
                await asyncio.to_thread(dial.dial)

    run_lead_server(tmp_path, run)
