"""Flow control of a link over TLS: a fast sender waits for a slow receiver, and neither waits forever."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time

import pytest
from tls_peers import join, run_with_lead, write_certificates

from windlass.errors import ProtocolError


@pytest.fixture
def files(tmp_path):
    return write_certificates(tmp_path / "tls")


def test_paced_sender_keeps_its_memory_small(files):
    async def count(link, _hello, frames):
        total = 0
        async for frame in frames:
            total += len(frame.body)
            if frame.type == "last":
                link.send({"type": "sum", "bytes": total})

    async def visit(listener):
        link = await join(files, listener.port)
        most = 0
        for number in range(64):
            link.send({"type": "last" if number == 63 else "piece"}, bytes(1 << 20))
            await link.drain()
            most = max(most, link._transport.get_write_buffer_size())
        frames = link.frames()
        assert (await frames.__anext__()).type == "welcome"
        answer = await asyncio.wait_for(frames.__anext__(), 20)
        await link.close()
        return most, answer.header["bytes"]

    most, total = run_with_lead(files, visit, count)
    assert total == 64 << 20
    assert most < 4 << 20


@pytest.mark.parametrize(
    ("stood_still_s", "stall_s", "counts"),
    [(9.0, math.inf, True), (11.0, math.inf, False), (4.0, 5.0, True), (6.0, 5.0, False)],
)
def test_old_messages_are_not_a_sign_of_life(files, stood_still_s, stall_s, counts):
    """A process that was stopped for long may read messages of a peer that has given it up since.

    Without a network it gets no other hint of that.
    """
    now_s = [100.0]

    async def speak(link, _hello, frames):
        async for frame in frames:
            link.send({"type": f"to {frame.type}"})

    async def visit(listener):
        link = await join(files, listener.port)
        link.watch(10.0, clock=lambda: now_s[0], stall_s=stall_s)
        now_s[0] += stood_still_s
        received = []
        link.send({"type": "ask"})
        with contextlib.suppress(ProtocolError):
            await asyncio.wait_for(
                link.listen(lambda f: (received.append(f.type), f.type == "to ask" and link.cut())),
                20,
            )
        assert link.has_stalled == (stood_still_s > stall_s)
        return received[1:], link.is_silent, link.received_s

    received, is_silent, received_s = run_with_lead(files, visit, speak)
    if counts:
        assert (received, is_silent, received_s) == (["to ask"], False, 100.0 + stood_still_s)
    else:
        assert (received, is_silent, received_s) == ([], True, 100.0)


def test_stall_is_detected_before_data_arrives(files):
    """The loop may run its timers first, and read the received data after that."""
    now_s = [100.0]

    async def visit(listener):
        link = await join(files, listener.port)
        link.watch(10.0, clock=lambda: now_s[0], stall_s=5.0)
        now_s[0] += 6.0
        with contextlib.suppress(ProtocolError):
            await asyncio.wait_for(link.listen(lambda _frame: None), 20)
        return link.has_stalled, link.is_silent

    async def be_silent(_link, _hello, frames):
        async for _ in frames:
            pass

    assert run_with_lead(files, visit, be_silent) == (True, True)


def test_sender_does_not_wait_forever_for_a_stalled_peer(files):
    async def visit(listener):
        link = await join(files, listener.port)
        ends = [None]
        for _ in range(100):
            link.send({"type": "piece"}, bytes(1 << 20))
            waits = [link.drain(timeout_s=0.1) for _ in range(2)]
            ends = await asyncio.gather(*waits, return_exceptions=True)
            if any(ends):
                break
        released.set()
        await link.close()
        return ends

    released = asyncio.Event()

    async def ignore(_link, _hello, _frames):
        await released.wait()

    ends = run_with_lead(files, visit, ignore)
    assert [type(end) for end in ends] == [ConnectionAbortedError] * 2
    assert "has not read anything for 0.1 s" in str(ends[0])


def test_close_does_not_wait_for_a_peer_that_never_confirms(files):
    """The peer does not read, so it never notices that this side closes."""

    async def take(link, _hello, frames):
        async for _ in frames:
            break
        await link.close()
        closed.set()

    closed = asyncio.Event()

    async def visit(listener):
        link = await join(files, listener.port)
        link._transport.pause_reading()
        link.send({"type": "leave me"})
        started_s = time.monotonic()
        await asyncio.wait_for(closed.wait(), 20)
        link._transport.resume_reading()
        await link.close()
        return time.monotonic() - started_s

    assert run_with_lead(files, visit, take) < 15


def test_disconnected_peer_ends_the_wait(files):
    async def leave(_link, _hello, _frames):
        return

    async def visit(listener):
        link = await join(files, listener.port)
        assert [frame.type async for frame in link.frames()] == ["welcome"]
        with pytest.raises(ConnectionError):
            await send_forever(link)
        await link.close()

    async def send_forever(link):
        for _ in range(100):
            link.send({"type": "piece"}, bytes(1 << 20))
            await link.drain()

    run_with_lead(files, visit, leave)
