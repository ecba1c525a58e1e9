"""Links between machines with honest peers, over real sockets and TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time

import pytest
from tls_peers import JOB, ask, echo, join, run_with_lead, settle, until, write_certificates

from windlass.agent.link import endpoints
from windlass.agent.link.tcp import TlsPlace
from windlass.errors import EngineError, ProtocolError
from windlass.wire import tls


@pytest.fixture
def files(tmp_path):
    return write_certificates(tmp_path / "tls")


def place_of(files, port, host="127.0.0.1"):
    return TlsPlace(host=host, port=port, context=tls.client_context(files))


async def connect(place, timeout_s=20.0, **changes):
    about = {"role": "node", "job_id": JOB, "node": 1, **changes}
    return await endpoints.connect(place, timeout_s=timeout_s, **about)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as held:
        return held.getsockname()[1]


@pytest.mark.parametrize("cert", ["node", "client"])
def test_frames_pass_in_both_directions(files, cert):
    async def visit(listener):
        link = await join(files, listener.port, cert=cert)
        seen = await ask(link, b"x" * 3_000_000)
        await link.close()
        return seen

    seen = run_with_lead(files, visit)
    assert [frame.type for frame in seen] == ["welcome", "echo"]
    assert seen[1].body == b"x" * 3_000_000


def test_frames_in_the_packet_of_the_welcome_are_delivered(files):
    """`connect` reads the welcome. Frames in the same packet must not wait for the next packet."""

    async def burst(link, _hello, frames):
        for number in range(3):
            link.send({"type": "burst", "n": number})
        async for _ in frames:
            pass

    async def visit(listener):
        link = await join(files, listener.port)
        frames = link.frames()
        got = [(await asyncio.wait_for(frames.__anext__(), 10)).type for _ in range(4)]
        await link.close()
        return got

    assert run_with_lead(files, visit, burst) == ["welcome", "burst", "burst", "burst"]


def test_hello_can_have_more_fields(files):
    received = []

    async def take(_link, hello, _frames):
        received.append(hello)

    async def visit(listener):
        place = TlsPlace(
            host="127.0.0.1", port=listener.port, context=tls.client_context(files, "client")
        )
        link = await connect(place, role="client", node=None, also={"lease": True})
        await link.close()

    run_with_lead(files, visit, take)
    assert received[0].lease is True


def test_peers_have_names(files):
    peers = []

    async def take(link, _hello, _frames):
        peers.append(link.peer)

    async def visit(listener):
        link = await join(files, listener.port)
        await link.close()
        return listener.port, link.peer

    port, peer = run_with_lead(files, visit, take)
    assert peer == f"127.0.0.1:{port}"
    assert peers[0].startswith("127.0.0.1:")


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 on this machine")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_every_address_of_the_machine(files, host):
    async def visit(listener):
        link = await join(files, listener.port, host=host)
        seen = await ask(link)
        await link.close()
        return seen[-1].body

    assert run_with_lead(files, visit, host="") == b"ping"


def test_sockets_are_tuned_on_both_sides(files):
    found = []

    def look(link):
        connection = link._transport.get_extra_info("socket")
        found.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0)
        found.append(connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0)

    async def take(link, _hello, frames):
        look(link)
        async for _ in frames:  # until the peer disconnects, because an ended link has no socket
            pass

    async def visit(listener):
        link = await join(files, listener.port)
        look(link)
        await link.close()

    run_with_lead(files, visit, take)
    assert found == [True] * 4


def test_connect_waits_for_the_lead(files):
    """First a server disconnects during the handshake, then none listens, then the lead starts."""

    async def run():
        tried = asyncio.Event()

        async def hang_up(_reader, writer):
            writer.close()
            tried.set()

        other = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        port = other.sockets[0].getsockname()[1]
        coming = asyncio.ensure_future(connect(place_of(files, port)))
        await asyncio.wait_for(tried.wait(), 10)
        other.close()
        await other.wait_closed()
        place = TlsPlace(host="127.0.0.1", port=port, context=tls.server_context(files))
        listener = await endpoints.serve(place, JOB, echo)
        link = await asyncio.wait_for(coming, 20)
        seen = await ask(link)
        await link.close()
        listener.close()
        await settle()
        return seen

    assert [frame.type for frame in asyncio.run(run())] == ["welcome", "echo"]


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_connect_gives_up_after_its_timeout(files, host):
    port = free_port()
    started_s = time.monotonic()
    with pytest.raises(TimeoutError, match=rf"cannot reach {host}:{port} within 0.3 s") as caught:
        asyncio.run(connect(place_of(files, port, host), timeout_s=0.3))
    assert time.monotonic() - started_s < 20
    assert str(caught.value).rpartition(": ")[2]  # the last problem is named


def test_connect_gives_up_on_a_silent_lead(files):
    """The kernel accepts the connection, but no process does."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        started_s = time.monotonic()
        with pytest.raises(TimeoutError, match="cannot reach"):
            asyncio.run(connect(place_of(files, deaf.getsockname()[1]), timeout_s=0.3))
        assert time.monotonic() - started_s < 10


def test_lead_of_another_job_is_reported(files, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(endpoints, "_DISTRUST_S", 0.3)
    other = write_certificates(tmp_path / "other")

    async def visit(listener):
        with pytest.raises(ProtocolError) as caught:
            await join(files, listener.port, timeout_s=600)
        return caught.value

    error = run_with_lead(other, visit)
    assert "is not trusted" in error.message
    assert "its certificate is not one of this job's" in error.message
    assert "submit the job again" in error.hint
    assert "its certificate is not one of this job's" in caplog.text


def test_another_program_is_reported(files, monkeypatch):
    monkeypatch.setattr(endpoints, "_DISTRUST_S", 0.3)

    async def run():
        async def connection(reader, writer):
            writer.write(b"220 welcome to something else\r\n")
            await reader.read()
            writer.close()

        server = await asyncio.start_server(connection, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ProtocolError, match="does not speak TLS"):
            await connect(place_of(files, port), timeout_s=600)
        server.close()
        await settle()

    asyncio.run(run())


def test_certificate_that_the_lead_refuses_is_reported(tmp_path, files, monkeypatch):
    """The node trusts the right CA, but its own certificate is from another one."""
    monkeypatch.setattr(endpoints, "_DISTRUST_S", 0.3)
    mixed = write_certificates(tmp_path / "mixed")
    (mixed / "ca.crt").write_bytes((files / "ca.crt").read_bytes())

    async def visit(listener):
        with pytest.raises(ProtocolError) as caught:
            await join(mixed, listener.port, timeout_s=600)
        return caught.value

    assert "trust" in run_with_lead(files, visit).message


def test_role_that_is_not_in_the_certificate_is_refused(files):
    async def visit(listener):
        with pytest.raises(ProtocolError, match=f"its certificate says client of {JOB}"):
            await join(files, listener.port, cert="client", role="node", timeout_s=600)

    run_with_lead(files, visit)


def test_lead_that_stops_listening_keeps_its_links(files):
    async def visit(listener):
        link = await join(files, listener.port)
        port = listener.port
        strangers = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: len(listener._pending) == 1, "the stranger is connected")
        listener.close()
        assert await asyncio.wait_for(strangers[0].read(), 10) == b""
        strangers[1].close()
        seen = await ask(link)
        await link.close()
        with pytest.raises(TimeoutError):
            await join(files, port, timeout_s=0.1)
        return seen[-1].type

    assert run_with_lead(files, visit) == "echo"


def test_failing_handler_does_not_affect_other_links(files, caplog):
    async def fail(link, hello, frames):
        if hello.node == 1:
            raise RuntimeError("oh dear")
        await echo(link, hello, frames)

    async def visit(listener):
        good = await join(files, listener.port, node=2)
        bad = await join(files, listener.port, node=1)
        assert [frame.type async for frame in bad.frames()] == ["welcome"]
        seen = await ask(good)
        await bad.close()
        await good.close()
        return seen[-1].type

    assert run_with_lead(files, visit, fail) == "echo"
    assert "oh dear" in caplog.text


def test_occupied_port_is_named(files):
    async def visit(listener):
        place = TlsPlace(host="", port=listener.port, context=tls.server_context(files))
        with pytest.raises(EngineError, match=rf"cannot listen at \*:{listener.port}") as caught:
            await endpoints.serve(place, JOB, echo)
        return caught.value.hint

    assert "choose another" in run_with_lead(files, visit, host="")


def test_many_concurrent_nodes(files):
    """There are more nodes than places for strangers, but all of them get in eventually."""
    num_nodes = 150

    async def visit(listener):
        joining = [join(files, listener.port, node=index) for index in range(num_nodes)]
        joined = await asyncio.gather(*joining)
        answers = [(await ask(link))[-1].type for link in joined]
        await asyncio.gather(*(link.close() for link in joined))
        return answers

    assert run_with_lead(files, visit) == ["echo"] * num_nodes


def test_tls_below_1_3_is_refused(files):
    context = tls.client_context(files)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    async def visit(listener):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection(
                "127.0.0.1", listener.port, ssl=context, server_hostname=tls.server_name(JOB)
            )

    run_with_lead(files, visit)
