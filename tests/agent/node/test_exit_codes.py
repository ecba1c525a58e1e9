"""Outcome of a rank, from its exit code, its result file, and whether it was asked to stop."""

from __future__ import annotations

import json

import pytest

from windlass.agent.node.world_ranks import judge_exit, read_error_file
from windlass.wire.results import ErrorInfo, Outcome, ResultHeader

ERROR = ErrorInfo(type="builtins.ValueError", message="boom")
RETURNED = ResultHeader(rank=1, attempt=2, state="returned", at_s=50.0)
RAISED = ResultHeader(rank=1, attempt=2, state="raised", at_s=50.0, error=ERROR)
EXITED = ResultHeader(rank=1, attempt=2, state="exited", at_s=50.0, error=ERROR, exit_code=3)


def judge(
    code,
    header=None,
    *,
    error=None,
    needs_result=True,
    stopped_at_s=None,
    oom=False,
    was_killed=False,
):
    return judge_exit(
        rank=1,
        attempt=2,
        code=code,
        header=header,
        error=error,
        needs_result=needs_result,
        at_s=100.0,
        stopped_at_s=stopped_at_s,
        out_of_memory=oom,
        was_killed=was_killed,
    )


def outcome(state, at_s=100.0, **fields):
    return Outcome(rank=1, attempt=2, state=state, at_s=at_s, **fields)


@pytest.mark.parametrize("stopped_at_s", [None, 10.0])
def test_returned_stays_returned_after_a_stop(stopped_at_s):
    assert judge(0, RETURNED, stopped_at_s=stopped_at_s) == outcome("returned", 50.0, exit_code=0)
    assert judge(0, needs_result=False, stopped_at_s=stopped_at_s) == outcome(
        "returned", exit_code=0
    )


@pytest.mark.parametrize(
    ("code", "header", "fields", "expected"),
    [
        # the rank's report
        (1, RAISED, {}, outcome("raised", 50.0, error=ERROR)),
        (3, EXITED, {}, outcome("exited", 50.0, error=ERROR, exit_code=3)),
        (-9, RAISED, {}, outcome("raised", 50.0, error=ERROR)),
        (0, RAISED, {}, outcome("raised", 50.0, error=ERROR)),
        # it failed before the stop
        (1, RAISED, {"stopped_at_s": 60.0}, outcome("raised", 50.0, error=ERROR)),
        (1, RAISED, {"stopped_at_s": 40.0}, outcome("stopped", exit_code=1)),
        # what the agent observed
        (0, None, {}, outcome("exited", exit_code=0)),
        (5, None, {}, outcome("exited", exit_code=5)),
        (5, None, {"error": ERROR}, outcome("exited", exit_code=5, error=ERROR)),
        (5, None, {"needs_result": False}, outcome("exited", exit_code=5)),
        (5, RETURNED, {}, outcome("exited", exit_code=5)),  # an exit handler failed
        (-11, RETURNED, {}, outcome("killed", signal=11)),
        (-9, None, {}, outcome("killed", signal=9)),
        (-9, None, {"oom": True}, outcome("killed", signal=9, out_of_memory=True)),
        (-15, None, {"oom": True}, outcome("killed", signal=15)),
        # the rank was asked to stop
        (0, None, {"stopped_at_s": 99.0}, outcome("stopped")),
        (5, None, {"stopped_at_s": 99.0}, outcome("stopped")),
        (-9, None, {"stopped_at_s": 99.0, "was_killed": True}, outcome("stopped")),
        # the agent did not kill it, so it died before the agent's signal
        (-9, None, {"stopped_at_s": 99.0}, outcome("killed", signal=9)),
        (-9, None, {"stopped_at_s": 99.0, "was_killed": True, "oom": True}, outcome("stopped")),
        (-15, None, {"stopped_at_s": 99.0}, outcome("stopped")),
    ],
)
def test_judge_exit(code, header, fields, expected):
    assert judge(code, header, **fields) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            {
                "message": {
                    "message": "RuntimeError: recorded",
                    "extraInfo": {"py_callstack": "Traceback ..."},
                }
            },
            ErrorInfo(type="RuntimeError", message="recorded", traceback="Traceback ..."),
        ),
        ({"message": "ValueError: a: b"}, ErrorInfo(type="ValueError", message="a: b")),
        (
            {"message": {"message": "KeyError: 1", "extraInfo": 3}},
            ErrorInfo(type="KeyError", message="1"),
        ),
        ({"message": {}}, None),
        ({"message": ""}, None),
        ({"other": 1}, None),
        ([], None),
        (None, None),
    ],
    ids=str,
)
def test_error_files(tmp_path, content, expected):
    path = tmp_path / "error.json"
    path.write_text(json.dumps(content))
    assert read_error_file(path) == expected


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[" * 200_000], ids=["empty", "cut", "bytes", "deep"]
)
def test_malformed_error_files(tmp_path, content):
    path = tmp_path / "error.json"
    path.write_bytes(content)
    assert read_error_file(path) is None
    assert read_error_file(tmp_path / "none") is None
