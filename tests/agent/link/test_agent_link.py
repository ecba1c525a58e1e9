"""Links: a peer with a proper hello is accepted. Any other gets the reason and is disconnected."""

from __future__ import annotations

import asyncio
import struct
import tempfile
from pathlib import Path

import pytest

from windlass import names
from windlass.agent.link import endpoints
from windlass.errors import ProtocolError
from windlass.wire.frames import FrameDecoder, make_hello, refusal, render_frame


@pytest.fixture
def socket_path():
    with tempfile.TemporaryDirectory(prefix="wl") as folder:  # tmp_path is too long for a socket
        yield Path(folder) / "lead.sock"


def serve_and(path, visit, handler=None):
    """Serve job a-1 at `path`, run `visit()`, and return its result and the accepted hellos."""
    taken = []

    async def take(link, hello, frames):
        taken.append(hello)
        if handler is not None:
            await handler(link, frames)

    async def run():
        server = await endpoints.serve(path, "a-1", take)
        try:
            return await asyncio.wait_for(visit(), timeout=30)
        finally:
            server.close()
            await settle()

    return asyncio.run(run()), taken


async def settle():
    """Wait until the server's side of every link has ended."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=10)
    for _ in range(3):  # a closed transport closes its socket in later rounds of the loop
        await asyncio.sleep(0)


async def send_raw(path, *chunks, hang_up=False):
    """Send raw bytes, and return the frames received before the other side disconnects."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    for chunk in chunks:
        writer.write(chunk)
    await writer.drain()
    if hang_up:
        writer.write_eof()
    answer = await reader.read()
    writer.close()
    return [dict(frame.header) for frame in FrameDecoder().feed(answer)]


def hello(**changes):
    return render_frame({**make_hello(role="node", job_id="a-1", node=1).to_header(), **changes})


def test_proper_hello_is_welcomed(socket_path):
    answer, taken = serve_and(socket_path, lambda: send_raw(socket_path, hello()))
    assert [frame["type"] for frame in answer] == ["welcome"]
    assert taken == [make_hello(role="node", job_id="a-1", node=1)]


@pytest.mark.parametrize(
    ("chunk", "why"),
    [
        (
            hello(version=names.PROTOCOL_VERSION + 1),
            "the peer speaks version 2, this agent version 1",
        ),
        (hello(job_id="b-2"), "the peer belongs to job 'b-2', not a-1"),
        (hello(type="join"), "expected hello"),
        (b"GET / HTTP/1.1\r\n\r\n", "is over the limit"),
        (struct.pack(">II", 2, 0) + b"[]", "header is not an object"),
        (struct.pack(">II", 9, 0) + b"\xff" * 9, "header is not JSON"),
        (struct.pack(">II", 100_000, 0) + b"[" * 100_000, "header is not JSON"),
        (struct.pack(">II", 2, 0xFFFFFFFF), "is over the limit"),
    ],
)
def test_improper_hello_is_refused_with_the_reason(socket_path, chunk, why):
    [answer], taken = serve_and(socket_path, lambda: send_raw(socket_path, chunk))
    assert answer["type"] == "refused"
    assert why in answer["why"]
    assert taken == []
    error = refusal(answer)
    assert isinstance(error, ProtocolError)
    assert why in error.message


def test_silent_peer_is_disconnected(socket_path, monkeypatch):
    monkeypatch.setattr(endpoints, "_HELLO_TIMEOUT_S", 0.05)
    for chunks in ((), (hello()[:-3],)):
        answer, taken = serve_and(socket_path, lambda c=chunks: send_raw(socket_path, *c))
        assert (answer, taken) == ([], [])


def test_disconnect_before_the_hello(socket_path):
    answer, taken = serve_and(socket_path, lambda: send_raw(socket_path, hang_up=True))
    assert (answer, taken) == ([], [])


def test_bad_peer_does_not_block_the_next(socket_path):
    async def both():
        bad = await send_raw(socket_path, b"\xff" * 64)
        return bad, await send_raw(socket_path, hello())

    (bad, good), taken = serve_and(socket_path, both)
    assert [frame["type"] for frame in bad + good] == ["refused", "welcome"]
    assert len(taken) == 1


def test_frames_pass_in_both_directions(socket_path):
    async def echo(link, frames):
        async for frame in frames:
            link.send({"type": "echo", "of": dict(frame.header)}, frame.body)

    async def visit():
        link = await endpoints.connect(socket_path, role="node", job_id="a-1", node=1, timeout_s=10)
        link.send({"type": "one"}, b"x" * 1_000_000)
        link.send({"type": "two"})
        frames = link.frames()
        got = [await frames.__anext__() for _ in range(3)]
        await link.close()
        return got

    got, _ = serve_and(socket_path, visit, echo)
    assert [frame.type for frame in got] == ["welcome", "echo", "echo"]
    assert got[1].body == b"x" * 1_000_000
    assert got[2].header["of"] == {"type": "two"}


def test_connect_waits_for_the_lead(socket_path):
    async def run():
        coming = asyncio.ensure_future(
            endpoints.connect(socket_path, role="node", job_id="a-1", node=1, timeout_s=30)
        )
        await asyncio.sleep(0)  # it has tried once by the time the server is up
        joined = asyncio.Event()

        async def take(_link, _hello, _frames):
            joined.set()

        server = await endpoints.serve(socket_path, "a-1", take)
        link = await coming
        await asyncio.wait_for(joined.wait(), 10)
        await link.close()
        server.close()
        await settle()
        return True

    assert asyncio.run(run())


def test_connect_gives_up_after_its_timeout(socket_path):
    with pytest.raises(FileNotFoundError):
        asyncio.run(endpoints.connect(socket_path, role="node", job_id="a", node=1, timeout_s=0.05))


def test_connect_gives_up_immediately_if_the_folder_is_gone(socket_path):
    missing = socket_path.parent / "gone" / "lead.sock"
    with pytest.raises(FileNotFoundError):
        asyncio.run(endpoints.connect(missing, role="node", job_id="a", node=1, timeout_s=600))


def test_sending_to_a_disconnected_peer_is_not_an_error(socket_path):
    async def visit():
        link = await endpoints.connect(socket_path, role="node", job_id="a-1", node=1, timeout_s=10)
        frames = link.frames()
        assert (await frames.__anext__()).type == "welcome"
        with pytest.raises(StopAsyncIteration):
            await frames.__anext__()
        for _ in range(20):
            link.send({"type": "heartbeat"}, b"x" * 100_000)
            await asyncio.sleep(0)
        await link.close()
        link.send({"type": "late"})
        return True

    done, _ = serve_and(socket_path, visit)
    assert done


def test_other_frames_are_not_refusals():
    assert refusal({"type": "welcome"}) is None


# -- frames passed to a listener ------------------------------------------------------------------


def make_listener(take_on, *, wait=False):
    """Return a handler that listens, and the list of how it ended.

    With `wait`, it listens only after the peer has sent everything and disconnected.
    """
    ended = []

    async def handler(link, _frames):
        if wait:
            while not link._is_over:
                await asyncio.sleep(0.001)
        try:
            await link.listen(lambda frame: take_on(link, frame))
            ended.append("quietly")
        except ProtocolError as error:
            ended.append(error.message)

    return handler, ended


@pytest.mark.parametrize("wait", [False, True], ids=["at once", "later"])
def test_listener_gets_all_frames_in_order(socket_path, wait):
    received = []
    handler, ended = make_listener(lambda _link, frame: received.append(frame.type), wait=wait)
    frames = [render_frame({"type": str(number)}, b"x" * number) for number in range(40)]
    serve_and(socket_path, lambda: send_raw(socket_path, hello(), *frames, hang_up=True), handler)
    assert received == [str(number) for number in range(40)]
    assert ended == ["quietly"]


def test_exception_of_the_listener_ends_the_link(socket_path):
    def take(_link, frame):
        raise ProtocolError(f"not {frame.type}")

    handler, ended = make_listener(take)
    serve_and(
        socket_path, lambda: send_raw(socket_path, hello(), render_frame({"type": "a"})), handler
    )
    assert ended == ["not a"]


def test_listener_can_stop(socket_path):
    received = []

    def take(link, frame):
        received.append(frame.type)
        link.stop_listening()

    handler, ended = make_listener(take)
    frames = [render_frame({"type": str(number)}) for number in range(3)]
    serve_and(socket_path, lambda: send_raw(socket_path, hello(), *frames), handler)
    assert received == ["0"]
    assert ended == ["quietly"]
