"""Result files: one line that any reader parses, then bytes that only a client unpickles."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spec.strategies import result_headers

from windlass.errors import ProtocolError
from windlass.wire.results import (
    ErrorInfo,
    Outcome,
    ResultHeader,
    read_header,
    read_result,
    write_result,
)

HEADER = ResultHeader(rank=1, attempt=0, state="returned", at_s=5.0)


@settings(deadline=None)
@given(result_headers, st.binary(max_size=100))
def test_round_trip(header, payload):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rank-0.result")
        write_result(path, header, payload)
        assert read_header(path) == header
        assert read_result(path) == (header, payload)


def test_a_payload_may_hold_anything(tmp_path):
    path = tmp_path / "result"
    write_result(path, HEADER, b'\n{"not": "a header"}\n\x80\x04')
    assert read_result(path) == (HEADER, b'\n{"not": "a header"}\n\x80\x04')


def test_missing_file_is_no_result(tmp_path):
    assert read_header(tmp_path / "none") is None
    assert read_result(tmp_path / "none") is None


@pytest.mark.parametrize("content", [b"", b"\x80\x04\x95", b"{", b"[]\n", b"{}\n", b"null\n"])
def test_malformed_result_file_is_refused(tmp_path, content):
    path = tmp_path / "result"
    path.write_bytes(content)
    for read in (read_header, read_result):
        with pytest.raises(ProtocolError):
            read(path)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ErrorInfo(type="builtins.ValueError", message="boom"), "ValueError: boom"),
        (ErrorInfo(type="builtins.KeyError", message=""), "KeyError"),
        (ErrorInfo(type="my.mod.Error", message="x"), "my.mod.Error: x"),
    ],
)
def test_an_error_reads_as_python_prints_it(error, text):
    assert error.text == text


@pytest.mark.parametrize(
    ("state", "is_failure"),
    [
        ("returned", False), ("stopped", False),
        ("raised", True), ("exited", True), ("killed", True), ("lost", True),
    ],
)  # fmt: skip
def test_outcomes_that_are_failures(state, is_failure):
    assert Outcome(rank=0, attempt=0, state=state, at_s=0).is_failure is is_failure


def test_outcome_matches_the_header():
    error = ErrorInfo(type="builtins.SystemExit", message="3")
    header = ResultHeader(rank=2, attempt=1, state="exited", at_s=7.0, error=error, exit_code=3)
    assert header.outcome() == Outcome(
        rank=2, attempt=1, state="exited", at_s=7.0, error=error, exit_code=3
    )
