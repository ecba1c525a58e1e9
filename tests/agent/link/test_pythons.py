"""Nodes and leads of every installed Python: they share a protocol and accept the same certificates."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest
from interpreters import find_pythons
from tls_peers import JOB, join, run_with_lead, write_certificates

import windlass

PYTHONS = find_pythons()

PEER = """
import asyncio, sys
from pathlib import Path
from windlass.agent.link import endpoints
from windlass.agent.link.tcp import TlsPlace
from windlass.wire import tls

async def echo(link, hello, frames):
    async for frame in frames:
        link.send({"type": "echo"}, frame.body)
        await link.drain()

async def serve(folder, job_id):
    place = TlsPlace(host="127.0.0.1", port=0, context=tls.server_context(folder))
    listener = await endpoints.serve(place, job_id, echo)
    print(listener.port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

async def visit(folder, job_id, port):
    place = TlsPlace(host="127.0.0.1", port=port, context=tls.client_context(folder))
    link = await endpoints.connect(place, role="node", job_id=job_id, node=1, timeout_s=20)
    link.send({"type": "ask"}, bytes(2_000_000))
    async for frame in link.frames():
        if frame.type == "echo":
            print(len(frame.body), flush=True)
            break
    await link.close()

what, folder, job_id, *port = sys.argv[1:]
if what == "serve":
    asyncio.run(serve(Path(folder), job_id))
else:
    asyncio.run(visit(Path(folder), job_id, int(port[0])))
"""


def command(version, *argv):
    return [PYTHONS[version], "-W", "error", "-c", PEER, *map(str, argv)]


ENV = {**os.environ, "PYTHONPATH": str(Path(windlass.__file__).parents[1])}


@pytest.fixture
def files(tmp_path):
    return write_certificates(tmp_path / "tls")


@pytest.mark.parametrize("version", sorted(PYTHONS))
def test_a_node_of_another_python(files, version):
    async def visit(listener):
        argv = command(version, "visit", files, JOB, listener.port)
        node = await asyncio.create_subprocess_exec(
            *argv, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = await asyncio.wait_for(node.communicate(), 50)
        return node.returncode, out.decode(), err.decode()

    assert run_with_lead(files, visit) == (0, "2000000\n", "")


@pytest.mark.parametrize("version", sorted(PYTHONS))
def test_a_lead_of_another_python(files, version):
    argv = command(version, "serve", files, JOB)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(argv, env=ENV, **pipes) as lead:
        port = int(lead.stdout.readline())

        async def visit():
            link = await join(files, port)
            link.send({"type": "ask"}, b"x" * 1_000_000)
            types = []
            async for frame in link.frames():
                types.append(frame.type)
                if frame.type == "echo":
                    break
            await link.close()
            return types

        try:
            assert asyncio.run(visit()) == ["welcome", "echo"]
        finally:
            lead.stdin.close()
            lead.wait(timeout=20)
