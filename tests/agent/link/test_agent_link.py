"""Links: who introduces himself properly is heard; everyone else is told why, and hung up on."""

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
    """Serve job a-1 at `path`, let `visit()` come, and give back what was taken."""
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
    """Let the server's side of every link end."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=10)
    for _ in range(3):  # a closed transport closes its socket in the next rounds of the loop
        await asyncio.sleep(0)


async def say(path, *chunks, hang_up=False):
    """Send raw bytes; every frame of the answer, until the other side hangs up."""
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


def test_a_proper_hello_is_welcomed(socket_path):
    answer, taken = serve_and(socket_path, lambda: say(socket_path, hello()))
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
def test_everyone_else_is_told_why(socket_path, chunk, why):
    [answer], taken = serve_and(socket_path, lambda: say(socket_path, chunk))
    assert answer["type"] == "refused"
    assert why in answer["why"]
    assert taken == []
    error = refusal(answer)
    assert isinstance(error, ProtocolError)
    assert why in error.message


def test_silence_is_not_waited_for(socket_path, monkeypatch):
    monkeypatch.setattr(endpoints, "_HELLO_TIMEOUT_S", 0.05)
    for chunks in ((), (hello()[:-3],)):
        answer, taken = serve_and(socket_path, lambda c=chunks: say(socket_path, *c))
        assert (answer, taken) == ([], [])


def test_hanging_up_before_a_word(socket_path):
    answer, taken = serve_and(socket_path, lambda: say(socket_path, hang_up=True))
    assert (answer, taken) == ([], [])


def test_one_bad_guest_does_not_keep_the_next_out(socket_path):
    async def both():
        bad = await say(socket_path, b"\xff" * 64)
        return bad, await say(socket_path, hello())

    (bad, good), taken = serve_and(socket_path, both)
    assert [frame["type"] for frame in bad + good] == ["refused", "welcome"]
    assert len(taken) == 1


def test_frames_go_both_ways(socket_path):
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


def test_a_lead_that_is_not_there_yet_is_waited_for(socket_path):
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


def test_a_lead_that_never_comes_is_given_up(socket_path):
    with pytest.raises(FileNotFoundError):
        asyncio.run(endpoints.connect(socket_path, role="node", job_id="a", node=1, timeout_s=0.05))


def test_a_lead_that_took_its_folder_along_is_given_up_at_once(socket_path):
    missing = socket_path.parent / "gone" / "lead.sock"
    with pytest.raises(FileNotFoundError):
        asyncio.run(endpoints.connect(missing, role="node", job_id="a", node=1, timeout_s=600))


def test_sending_to_who_hung_up_is_no_error(socket_path):
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


def test_other_frames_are_no_refusal():
    assert refusal({"type": "welcome"}) is None


# -- frames that are handed over as they come ----------------------------------------------------


def listening(take_on, *, wait=False):
    """A handler that listens; with `wait` only once the peer has said everything and hung up."""
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
def test_all_frames_are_handed_over_in_order(socket_path, wait):
    heard = []
    handler, ended = listening(lambda _link, frame: heard.append(frame.type), wait=wait)
    frames = [render_frame({"type": str(number)}, b"x" * number) for number in range(40)]
    serve_and(socket_path, lambda: say(socket_path, hello(), *frames, hang_up=True), handler)
    assert heard == [str(number) for number in range(40)]
    assert ended == ["quietly"]


def test_what_the_listener_raises_ends_the_link(socket_path):
    def take(_link, frame):
        raise ProtocolError(f"not {frame.type}")

    handler, ended = listening(take)
    serve_and(socket_path, lambda: say(socket_path, hello(), render_frame({"type": "a"})), handler)
    assert ended == ["not a"]


def test_who_has_heard_enough_hears_no_more(socket_path):
    heard = []

    def take(link, frame):
        heard.append(frame.type)
        link.stop_listening()

    handler, ended = listening(take)
    frames = [render_frame({"type": str(number)}) for number in range(3)]
    serve_and(socket_path, lambda: say(socket_path, hello(), *frames), handler)
    assert heard == ["0"]
    assert ended == ["quietly"]
