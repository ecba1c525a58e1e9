"""Pace of a link over TLS: who sends much waits for who takes little, and neither waits for ever."""

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


def test_who_is_paced_keeps_memory_small(files):
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
def test_old_words_are_no_sign_of_life(files, stood_still_s, stall_s, counts):
    """A process that stood still for long finds words of a peer that gave it up since.

    Without a network it learns nothing else of that.
    """
    now_s = [100.0]

    async def speak(link, _hello, frames):
        async for frame in frames:
            link.send({"type": f"to {frame.type}"})

    async def visit(listener):
        link = await join(files, listener.port)
        link.watch(10.0, clock=lambda: now_s[0], stall_s=stall_s)
        now_s[0] += stood_still_s
        heard = []
        link.send({"type": "ask"})
        with contextlib.suppress(ProtocolError):
            await asyncio.wait_for(
                link.listen(lambda f: (heard.append(f.type), f.type == "to ask" and link.cut())), 20
            )
        assert link.has_stalled == (stood_still_s > stall_s)
        return heard[1:], link.is_silent, link.heard_s

    heard, is_silent, heard_s = run_with_lead(files, visit, speak)
    if counts:
        assert (heard, is_silent, heard_s) == (["to ask"], False, 100.0 + stood_still_s)
    else:
        assert (heard, is_silent, heard_s) == ([], True, 100.0)


def test_a_stall_is_noticed_before_anything_arrives(files):
    """The loop may look at its timers first, and read what has arrived after that."""
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


def test_a_peer_that_takes_nothing_is_not_waited_for_for_ever(files):
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


def test_a_peer_that_never_says_goodbye_is_left(files):
    """It does not read, so it never hears ours."""

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


def test_a_peer_that_hung_up_ends_the_pacing(files):
    async def leave(_link, _hello, _frames):
        return

    async def visit(listener):
        link = await join(files, listener.port)
        assert [frame.type async for frame in link.frames()] == ["welcome"]
        with pytest.raises(ConnectionError):
            await send_for_ever(link)
        await link.close()

    async def send_for_ever(link):
        for _ in range(100):
            link.send({"type": "piece"}, bytes(1 << 20))
            await link.drain()

    run_with_lead(files, visit, leave)
