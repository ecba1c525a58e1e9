"""Frames: they survive any cutting of the stream, and what is too long or is garbage is refused."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spec.strategies import plain_json, texts

from windlass import names
from windlass.errors import ProtocolError
from windlass.wire.messages import Frame, FrameDecoder, check_hello, make_hello, render_frame

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
def test_half_a_frame_is_no_frame(first, second):
    stream = render_frame(first.header, first.body) + render_frame(second.header, second.body)
    decoder = FrameDecoder()
    assert decode(decoder, stream[:-1]) == [first]
    assert decode(decoder, stream[-1:]) == [second]


@settings(deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=10))
def test_garbage_is_refused_or_waited_for_but_never_crashes(chunks):
    decoder = FrameDecoder()
    try:
        decode(decoder, *chunks)
    except ProtocolError:
        pass
    else:
        assert decoder.num_buffered <= sum(map(len, chunks))


@pytest.mark.parametrize(
    ("header_bytes", "body_bytes"),
    [(names.MAX_HEADER_BYTES + 1, 0), (0, names.MAX_BODY_BYTES + 1), (0xFFFFFFFF, 0xFFFFFFFF)],
)
def test_what_is_too_long_is_refused_as_soon_as_it_is_announced(header_bytes, body_bytes):
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


def test_another_protocol_is_refused():
    with pytest.raises(ProtocolError):
        decode(FrameDecoder(), b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")


@pytest.mark.parametrize(
    "header", [b"{", b"[1]", b"3", b"null", b'"x"', b"\xff\xfe", b"", b"[" * 200_000]
)
def test_a_header_that_is_no_object_is_refused(header):
    with pytest.raises(ProtocolError, match="header is not"):
        decode(FrameDecoder(), struct.pack(">II", len(header), 0) + header)


@pytest.mark.parametrize(
    ("header", "kind"), [({"type": "hello"}, "hello"), ({}, ""), ({"type": 3}, "3")]
)
def test_type_of_a_frame(header, kind):
    assert Frame(header).type == kind


def test_hello():
    hello = make_hello(role="node", job_id="a-1", node=2)
    check_hello(json.loads(json.dumps(hello)), job_id="a-1")
    assert (hello["role"], hello["node"]) == ("node", 2)


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
    ],
)
def test_a_wrong_hello_is_refused(change, says):
    with pytest.raises(ProtocolError) as caught:
        check_hello({**make_hello(role="client", job_id="a-1"), **change}, job_id="a-1")
    assert says in caught.value.message
    assert len(caught.value.message) < 200
