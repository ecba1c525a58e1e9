"""Hostile and broken peers: each is refused, named in one log line, and does not affect other peers."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import struct
import time
from pathlib import Path

import pytest
from tls_peers import (
    JOB,
    ask,
    echo,
    join,
    run_with_lead,
    until,
    write_certificates,
    write_with_expired_client,
)

from windlass.agent.link import endpoints, tcp
from windlass.wire.frames import FrameDecoder, make_hello, render_frame


@pytest.fixture
def files(tmp_path):
    return write_with_expired_client(tmp_path / "tls")


def make_careless_context(folder=None, cert="node"):
    """Return a context that trusts any server, with a certificate of `folder` or none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if folder is not None:
        context.load_cert_chain(folder / f"{cert}.crt", folder / f"{cert}.key")
    return context


async def intrude(port, *chunks, context=None, hang_up=False):
    """Send raw bytes, with or without TLS, and return the frames received before the disconnect."""
    decoder = FrameDecoder()
    answer = b""
    writer = None
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        for chunk in chunks:
            writer.write(chunk)
        await writer.drain()
        if not hang_up:
            answer = await asyncio.wait_for(reader.read(), 20)
    except OSError:
        pass  # the lead has disconnected, as expected
    finally:
        if writer is not None:
            writer.transport.abort()
    return [dict(frame.header) for frame in decoder.feed(answer)]


def hello(role="node", **changes):
    return render_frame({**make_hello(role=role, job_id=JOB, node=1).to_header(), **changes})


HELLO = hello()


def refuse(files, capture, *chunks, **how):
    """Return the reply to one intruder and its log line.

    An honest peer is served before, during and after the intrusion.
    """
    taken = []

    async def take(link, greeting, frames):
        taken.append(greeting.node)
        await echo(link, greeting, frames)

    async def visit(listener):
        before = await join(files, listener.port, node=7)
        answer = await intrude(listener.port, *chunks, **how)
        await until(lambda: len(listener._pending) == 0, "the stranger is disconnected")
        after = await join(files, listener.port, node=8)
        for link in (before, after):
            assert (await ask(link))[-1].type == "echo"
            await link.close()
        return answer

    answer = run_with_lead(files, visit, take)
    assert taken == [7, 8]
    [record] = [r for r in capture.records if r.name.startswith("windlass.")]
    assert "\n" not in record.getMessage()
    assert record.getMessage().startswith("refused a link from 127.0.0.1:")
    return answer, record.getMessage()


@pytest.mark.parametrize(
    ("chunk", "says"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "it speaks HTTP, not TLS"),
        (HELLO, ""),
        (b"\x00" * 4096, ""),
        (random.Random(5).randbytes(65536), ""),
        (b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc" + b"\xff" * 0x4000, ""),
    ],
    ids=["http", "our frames in plain text", "zeros", "noise", "a mad client hello"],
)
def test_no_tls(files, caplog, monkeypatch, chunk, says):
    # noise may announce more bytes than it has
    monkeypatch.setattr(endpoints, "_HELLO_TIMEOUT_S", 1.0)
    answer, line = refuse(files, caplog, chunk)
    assert answer == []
    assert says in line


def test_no_certificate(files, caplog):
    answer, line = refuse(files, caplog, HELLO, context=make_careless_context())
    assert answer == []
    assert "it presents no certificate" in line


@pytest.mark.parametrize("job_id", [JOB, "other-1"])
def test_a_certificate_of_another_ca(files, caplog, tmp_path, job_id):
    other = write_certificates(tmp_path / "other", job_id)
    answer, line = refuse(files, caplog, HELLO, context=make_careless_context(other))
    assert answer == []
    assert "its certificate is not one of this job's" in line


def test_an_expired_certificate(files, caplog):
    answer, line = refuse(
        files, caplog, hello("client"), context=make_careless_context(files, "client")
    )
    assert answer == []
    assert "certificate has expired" in line


@pytest.mark.parametrize(("cert", "claims"), [("client", "node"), ("node", "client")])
def test_role_of_another_certificate(tmp_path, caplog, cert, claims):
    files = write_certificates(tmp_path / "valid")
    [answer], line = refuse(
        files, caplog, hello(claims), context=make_careless_context(files, cert)
    )
    assert answer["type"] == "refused"
    assert f"claims to be {claims} of {JOB}, but its certificate says {cert} of {JOB}" in line


@pytest.mark.parametrize(
    ("chunk", "says"),
    [
        (hello(job_id="other-1"), "belongs to job 'other-1'"),
        (hello(version=99), "speaks version 99"),
        (hello(role="root"), "role is 'root'"),
        (hello(role=["node"]), "role is ['node']"),
        (hello(node=None), "index is None"),
        (hello(node=-1), "index is -1"),
        (hello(node="1\nforged line"), r"index is '1\nforged line'"),
        (hello(type="join"), "expected hello"),
        (struct.pack(">II", 2, 1 << 30) + b"{}", "1073741824 bytes is over the limit"),
        (struct.pack(">II", 1 << 30, 0), "is over the limit"),
        (HELLO[:7] + b"\x01" + HELLO[8:] + b"x", "is over the limit"),
        (struct.pack(">II", 4, 0) + b"\xff\xff\xff\xff", "not JSON"),
    ],
)
def test_malformed_hello_with_a_valid_certificate(files, caplog, chunk, says):
    """A peer with a valid certificate gets the reason."""
    [answer], line = refuse(files, caplog, chunk, context=make_careless_context(files))
    assert answer["type"] == "refused"
    assert says in line


@pytest.mark.parametrize("certified", [True, False])
@pytest.mark.parametrize("num_bytes", [0, 1, 11])
def test_peer_that_stops_before_or_during_its_hello(
    files, caplog, monkeypatch, certified, num_bytes
):
    """It stops before or after the handshake, with no bytes or only some of them."""
    monkeypatch.setattr(endpoints, "_HELLO_TIMEOUT_S", 0.5)
    start = HELLO if certified else b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
    context = make_careless_context(files) if certified else None
    started_s = time.monotonic()
    answer, line = refuse(files, caplog, start[:num_bytes], context=context)
    assert answer == []
    assert "no hello within 0.5 s" in line
    assert 0.5 <= time.monotonic() - started_s < 15


@pytest.mark.parametrize("certified", [True, False])
def test_peer_that_disconnects_immediately(files, caplog, certified):
    context = make_careless_context(files) if certified else None
    answer, _ = refuse(files, caplog, context=context, hang_up=True)
    assert answer == []


def test_half_a_frame_after_a_good_hello(files, caplog):
    async def visit(listener):
        half = render_frame({"type": "result"}, bytes(1000))[:-500]
        answer = await intrude(
            listener.port, HELLO, half, context=make_careless_context(files), hang_up=True
        )
        await until(lambda: "in the middle of a frame" in caplog.text, "the error is logged")
        link = await join(files, listener.port)
        assert (await ask(link))[-1].type == "echo"
        await link.close()
        return answer

    assert run_with_lead(files, visit) == []


def test_a_huge_frame_after_a_good_hello(files, caplog):
    frame = struct.pack(">II", 2, 1 << 30) + b"{}" + bytes(1 << 16)

    async def visit(listener):
        answer = await intrude(listener.port, HELLO, frame, context=make_careless_context(files))
        link = await join(files, listener.port)
        assert (await ask(link))[-1].type == "echo"
        await link.close()
        return answer

    answer = run_with_lead(files, visit)
    assert [greeting["type"] for greeting in answer][:1] == ["welcome"]
    assert "1073741824 bytes is over the limit" in caplog.text


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts files in /proc")
def test_silent_crowd_does_not_keep_an_honest_peer_out(files, caplog, monkeypatch):
    """Three times as many silent peers connect as there are slots.

    The hello timeout is too long to expire, so the listener must evict them.
    """
    monkeypatch.setattr(endpoints, "_HELLO_TIMEOUT_S", 120.0)
    monkeypatch.setattr(tcp, "_EVICT_AFTER_S", 0.05)
    most = 0

    async def visit(listener):
        nonlocal most
        before = open_files()
        crowd = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(192)]
        try:
            joining = asyncio.ensure_future(join(files, listener.port, timeout_s=50))
            while not joining.done():
                most = max(most, len(listener._pending))
                await asyncio.sleep(0.005)
            link = joining.result()
            assert (await ask(link))[-1].type == "echo"
            await link.close()
        finally:
            for one in crowd:
                one.close()
        await until(lambda: len(listener._pending) == 0, "the crowd is disconnected")
        await until(lambda: open_files() <= before + 3, "their sockets are closed")

    run_with_lead(files, visit)
    assert most == tcp._MAX_PENDING
    assert "no hello yet, and others are waiting" in caplog.text


def test_flood_does_not_fill_the_log(caplog, monkeypatch):
    log = tcp.RefusalLog()
    for number in range(1000):
        log.log(f"10.0.0.1:{number}", "it does not speak TLS")
    assert len(caplog.records) == tcp._MAX_LINES
    monkeypatch.setattr(tcp, "_WINDOW_S", -1.0)  # a minute later
    log.log("10.0.0.2:1", "it does not speak TLS")
    assert [record.getMessage() for record in caplog.records[-2:]] == [
        f"refused {1000 - tcp._MAX_LINES} more links, not logged",
        "refused a link from 10.0.0.2:1: it does not speak TLS",
    ]
