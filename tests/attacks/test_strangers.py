"""Attack: five hundred silent connections that try to keep the job's own nodes and clients out."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from tls_peers import ask, join, run_with_lead, until, write_certificates

from windlass.agent.link import tcp

pytestmark = pytest.mark.long

NUM_STRANGERS = 500


@pytest.mark.parametrize("says", [b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n"])
def test_job_members_get_in_past_500_silent_connections(tmp_path, says):
    files = write_certificates(tmp_path / "tls")

    async def visit(listener):
        async def knock():
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
                writers.append(writer)
                writer.write(says)

        writers: list[asyncio.StreamWriter] = []
        await asyncio.gather(*(knock() for _ in range(NUM_STRANGERS)))
        assert len(writers) > 100
        link = await join(files, listener.port)
        seen = await ask(link)
        assert [frame.type for frame in seen][-1] == "echo"
        assert len(listener._pending) <= tcp._MAX_PENDING
        client = await join(files, listener.port, cert="client", node=None)
        assert (await ask(client))[-1].type == "echo"
        await until(lambda: len(listener._pending) == 0, "all strangers are disconnected")
        assert (await ask(link))[-1].type == "echo"  # accepted connections stay
        for one in (link, client):
            await one.close()
        for writer in writers:
            writer.transport.abort()

    run_with_lead(files, visit)
