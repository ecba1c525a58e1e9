"""Messages of ranks, nodes and clients are validated and bounded before they are used."""

from __future__ import annotations

import json

import pytest

from windlass import names
from windlass.agent.node.node import read_message
from windlass.errors import ProtocolError
from windlass.wire.file_sync import read_piece
from windlass.wire.frames import check_hello, make_hello
from windlass.wire.messages.link import FilePiece

DEEP = b"[" * 100_000 + b"]" * 100_000
MANY_DIGITS = b"9" * 5_000
REPORT = {"type": "report", "rank": 0, "attempt": 0, "step": 1, "total": 2, "at_s": 1.0}


@pytest.mark.parametrize(
    "data",
    [
        DEEP,
        b"[]",
        b"{}",
        b'{"type": "report", "rank": %s}' % MANY_DIGITS,
        json.dumps({**REPORT, "metrics": {"loss": [1]}}).encode(),
        json.dumps({**REPORT, "metrics": 3}).encode(),
        json.dumps({**REPORT, "rank": "x", "metrics": {}}).encode(),
        json.dumps({**REPORT, "step": 1.5, "metrics": {}}).encode(),
        json.dumps({**REPORT, "at_s": float("inf"), "metrics": {}}).encode(),
    ],
)
def test_malformed_report_is_refused(data):
    with pytest.raises(ProtocolError):
        read_message(data)


def test_report_is_read():
    report = {**REPORT, "metrics": {"loss": 0.5, "name": "x", "none": None}}
    assert read_message(json.dumps(report).encode()).to_header() == report


@pytest.mark.parametrize(
    "has", [[], "x", {"a": -1}, {"a": 1.5}, {"a": True}, {"a": 1 << 70}, {"a": None}, {"a": {}}]
)
def test_malformed_file_list_in_hello_is_refused(has):
    hello = make_hello(role="client", job_id="a-1").to_header()
    with pytest.raises(ProtocolError):
        check_hello({**hello, "has": has}, job_id="a-1")
    assert check_hello({**hello, "has": {"a": 0}}, job_id="a-1").has == {"a": 0}


@pytest.mark.parametrize(
    "header",
    [
        {"path": "a", "offset": 1 << 70},
        {"path": "a", "offset": True},
        {"path": "a", "offset": -1},
        {"path": "a", "offset": 0, "total_bytes": -1},
        {"path": "a", "offset": 0, "total_bytes": "x"},
        {"path": 3, "offset": 0},
    ],
)
def test_malformed_file_piece_is_refused(header):
    with pytest.raises(ProtocolError):
        read_piece(FilePiece.read(header), b"x")


def test_frames_are_bounded():
    assert names.MAX_HEADER_BYTES <= 1 << 20
    assert names.MAX_BODY_BYTES <= 256 << 20
