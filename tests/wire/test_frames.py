"""Frames. They survive any chunking of the stream, and oversized frames and garbage are refused."""

from __future__ import annotations

import json
import struct
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spec.strategies import plain_json, texts

from windlass import names
from windlass.errors import ProtocolError
from windlass.wire.frames import (
    Frame,
    FrameDecoder,
    check_hello,
    make_hello,
    render_frame,
    render_pieces,
)

frames = st.builds(Frame, st.dictionaries(texts, plain_json, max_size=4), st.binary(max_size=50))


def decode(decoder, *chunks):
    return [frame for chunk in chunks for frame in decoder.feed(chunk)]


@settings(deadline=None)
@given(st.lists(frames, max_size=4), st.data())
def test_frames_survive_any_chunking(sent, data):
    stream = b"".join(render_frame(frame.header, frame.body) for frame in sent)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8).map(sorted))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert decode(FrameDecoder(), *chunks) == sent
    assert decode(FrameDecoder(), *(bytes([byte]) for byte in stream)) == sent


@settings(deadline=None)
@given(frames, frames)
def test_partial_frame_is_not_returned(first, second):
    stream = render_frame(first.header, first.body) + render_frame(second.header, second.body)
    decoder = FrameDecoder()
    assert decode(decoder, stream[:-1]) == [first]
    assert decode(decoder, stream[-1:]) == [second]


def count_buffered(decoder):
    """Return the number of buffered bytes of incomplete frames."""
    head = b"" if decoder._header is None else render_frame(decoder._header)
    return len(head) + len(decoder._body) - decoder._room + len(decoder._unread)


@settings(deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=10))
def test_garbage_is_refused_or_waited_for_but_never_crashes(chunks):
    decoder = FrameDecoder()
    try:
        decode(decoder, *chunks)
    except ProtocolError:
        pass
    else:
        assert count_buffered(decoder) <= sum(map(len, chunks))


@pytest.mark.parametrize(
    ("header_bytes", "body_bytes"),
    [(names.MAX_HEADER_BYTES + 1, 0), (0, names.MAX_BODY_BYTES + 1), (0xFFFFFFFF, 0xFFFFFFFF)],
)
def test_oversized_frame_is_refused_when_announced(header_bytes, body_bytes):
    decoder = FrameDecoder()
    announced = struct.pack(">II", header_bytes, body_bytes)
    assert decode(decoder, announced[:7]) == []
    with pytest.raises(ProtocolError, match="over the limit"):
        decode(decoder, announced[7:])


def test_the_limit_itself_is_allowed():
    text = json.dumps({"a": "x" * 20}).encode()
    decoder = FrameDecoder(max_header_bytes=len(text), max_body_bytes=3)
    [frame] = decode(decoder, struct.pack(">II", len(text), 3) + text + b"abc")
    assert frame == Frame({"a": "x" * 20}, b"abc")


@pytest.mark.parametrize("cut", [1000, 4096, 65_536, 10_000_000])
def test_a_large_body_in_pieces_small_and_large(cut):
    body = bytes(range(256)) * 8192
    stream = render_frame({"n": 1}, body) + render_frame({"n": 2}) + render_frame({"n": 3}, b"end")
    decoder = FrameDecoder()
    got = decode(decoder, *(stream[at : at + cut] for at in range(0, len(stream), cut)))
    assert got == [Frame({"n": 1}, body), Frame({"n": 2}), Frame({"n": 3}, b"end")]
    assert decoder.is_between_frames
    assert count_buffered(decoder) == 0


def test_announced_bytes_take_no_memory_before_they_arrive():
    decoder = FrameDecoder()
    assert decode(decoder, struct.pack(">II", 2, names.MAX_BODY_BYTES) + b"{}" + b"x" * 100) == []
    assert count_buffered(decoder) == 10 + 100
    assert not decoder.is_between_frames


def test_small_pieces_are_joined():
    """One object per byte would take fifty times the memory."""
    decoder = FrameDecoder()
    stream = render_frame({}, bytes(10_000))
    assert decode(decoder, *(stream[at : at + 1] for at in range(len(stream) - 1))) == []
    assert sys.getsizeof(decoder._body) < 2 * 10_000


def read_in_place(decoder, stream, draw_size):
    """Read as from a socket: into the buffer of an unfinished body, or else into a new one."""
    taken, at = [], 0
    while at < len(stream):
        data = stream[at : at + draw_size()]
        place = decoder.place()
        if place is None:
            taken += decoder.feed(data)
        else:
            with place:
                data = data[: len(place)]
                place[: len(data)] = data
            decoder.placed(len(data))
            taken += iter(decoder.take, None)
        at += len(data)
    return taken


@settings(deadline=None)
@given(st.lists(frames, max_size=4), st.data())
def test_bodies_may_be_read_in_place(sent, data):
    stream = b"".join(render_frame(frame.header, frame.body) for frame in sent)
    decoder = FrameDecoder()
    assert read_in_place(decoder, stream, lambda: data.draw(st.integers(1, 60))) == sent
    assert decoder.is_between_frames
    assert decoder.place() is None


def test_large_body_read_in_place_grows_as_it_arrives():
    body = bytes(range(256)) * (80 << 10)
    stream = render_frame({"n": 1}, body) + render_frame({"n": 2}, b"end")
    decoder = FrameDecoder()
    assert decode(decoder, stream[:100]) == []
    assert len(decoder.place()) < len(body) / 2
    got = read_in_place(decoder, stream[100:], lambda: 300_000)
    assert got == [Frame({"n": 1}, body), Frame({"n": 2}, b"end")]


def test_data_read_outside_the_buffer_is_not_lost():
    first, second = render_frame({"n": 1}, b"abcdef"), render_frame({"n": 2})
    decoder = FrameDecoder()
    assert decode(decoder, first[:-4]) == []
    with decoder.place() as place:
        place[:1] = b"c"
    decoder.placed(1)
    assert decode(decoder, b"def" + second) == [Frame({"n": 1}, b"abcdef"), Frame({"n": 2})]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=50), max_size=3), st.booleans())
def test_a_body_may_be_sent_in_pieces(segments, is_large):
    if is_large:
        segments = [*segments, memoryview(bytes(range(256)) * 9000), b"end"]
    pieces = render_pieces({"n": 1}, segments)
    assert b"".join(pieces) == render_frame({"n": 1}, b"".join(segments))
    assert len(pieces) == 1 or is_large


def test_interrupted_reader_loses_nothing():
    decoder = FrameDecoder()
    for frame in decoder.feed(render_frame({"n": 1}) + render_frame({"n": 2}, b"two")):
        assert frame == Frame({"n": 1})
        break
    assert not decoder.is_between_frames
    assert decode(decoder, b"", render_frame({"n": 3})) == [
        Frame({"n": 2}, b"two"),
        Frame({"n": 3}),
    ]


def test_limits_may_be_raised_between_frames():
    decoder = FrameDecoder(max_body_bytes=0)
    frames = decoder.feed(render_frame({"n": 1}) + render_frame({"n": 2}, b"two"))
    assert next(frames) == Frame({"n": 1})
    decoder.max_body_bytes = 3
    assert next(frames) == Frame({"n": 2}, b"two")


def test_another_protocol_is_refused():
    with pytest.raises(ProtocolError):
        decode(FrameDecoder(), b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")


@pytest.mark.parametrize(
    "header", [b"{", b"[1]", b"3", b"null", b'"x"', b"\xff\xfe", b"", b"[" * 200_000]
)
def test_header_that_is_not_an_object_is_refused(header):
    with pytest.raises(ProtocolError, match="header is not"):
        decode(FrameDecoder(), struct.pack(">II", len(header), 0) + header)


@pytest.mark.parametrize(
    ("header", "kind"), [({"type": "hello"}, "hello"), ({}, ""), ({"type": 3}, "3")]
)
def test_type_of_a_frame(header, kind):
    assert Frame(header).type == kind


def test_hello():
    hello = make_hello(role="node", job_id="a-1", node=2)
    check_hello(json.loads(json.dumps(hello.to_header())), job_id="a-1")
    assert (hello.role, hello.node) == ("node", 2)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"version": names.PROTOCOL_VERSION + 1},
            "the peer speaks version 2, this agent version 1",
        ),
        ({"version": None}, "the peer speaks version None"),
        ({"version": "x" * 500}, "the peer speaks version 'xxx"),
        ({"job_id": "b-2"}, "the peer belongs to job 'b-2', not a-1"),
        ({"type": "join"}, "expected hello, got 'join'"),
        ({"type": None}, "expected hello, got None"),
        ({"role": "root"}, "the peer's role is 'root', not one of node, client"),
        ({"role": {}}, "the peer's role is {}"),
        ({"role": "node", "node": None}, "the node's index is None"),
        ({"role": "node", "node": -1}, "the node's index is -1"),
        ({"role": "node", "node": True}, "the node's index is True"),
        ({"role": "node", "node": "1"}, "the node's index is '1'"),
    ],
)
def test_a_wrong_hello_is_refused(change, says):
    with pytest.raises(ProtocolError) as caught:
        check_hello({**make_hello(role="client", job_id="a-1").to_header(), **change}, job_id="a-1")
    assert says in caught.value.message
    assert len(caught.value.message) < 200
