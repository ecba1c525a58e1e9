"""Text of a verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest

from windlass.observe.explain import exit_code_of, render_verdict
from windlass.wire.status import FailureKind, JobStatus, Phase, Verdict

VERDICT = Verdict(
    kind=FailureKind.USER_ERROR,
    message="rank 3 on ddp-ab2cd-node-1 raised ValueError: boom at /src/train.py:17",
    rank=3,
    node=1,
    node_name="ddp-ab2cd-node-1",
    at_s=112.3,
    exception="ValueError: boom",
    file="/src/train.py",
    line=17,
    source='raise ValueError("boom")',
    others={"stopped": 3},
    next="windlass logs ddp-ab2cd --rank 3",
)
STATUS = JobStatus(
    job_id="ddp-ab2cd",
    name="ddp-ab2cd",
    engine="local",
    work="train.py",
    phase=Phase.FAILED,
    created_at_s=100.0,
    verdict=VERDICT,
)


def test_the_whole_text() -> None:
    assert render_verdict(STATUS, folder="/src") == (
        "✗ job ddp-ab2cd failed: user error\n"
        "  rank 3 on ddp-ab2cd-node-1 raised ValueError: boom        "
        "attempt 0, 12.3 s after submit\n"
        '  train.py:17    raise ValueError("boom")\n'
        "  the other 3 ranks: 3 stopped\n"
        "  next: windlass logs ddp-ab2cd --rank 3"
    )


def test_no_verdict_gives_no_text() -> None:
    assert render_verdict(replace(STATUS, verdict=None)) == ""


def _render(**fields: object) -> str:
    return render_verdict(replace(STATUS, verdict=replace(VERDICT, **fields)))  # type: ignore[arg-type]


def test_long_message_is_bounded() -> None:
    lines = _render(exception="E: " + "\n".join(map(str, range(40)))).splitlines()
    assert lines[1].startswith("  rank 3 on ddp-ab2cd-node-1 raised E: 0 ")
    assert lines[2:7] == [f"    {number}" for number in range(1, 6)]
    assert lines[7] == "    ... and 34 more lines"
    assert len(_render(exception="E: " + "x" * 10_000)) < 1000


def test_control_characters_are_escaped() -> None:
    nasty = "a\x1b[2J\x1b]0;t\x07\rb\x9bc"
    text = _render(exception=nasty, source=nasty, file=nasty, next=nasty, node_name=nasty)
    assert not set(text) & {"\x1b", "\x07", "\r", "\x9b"}


@pytest.mark.parametrize(
    ("kind", "signal", "head"),
    [
        (FailureKind.KILLED, "SIGKILL", "failed: killed by SIGKILL"),
        (FailureKind.OUT_OF_MEMORY, "SIGKILL", "failed: out of memory"),
        (FailureKind.LOST_NODE, "", "failed: lost node"),
        (FailureKind.TIMEOUT, "", "failed: timeout"),
        (FailureKind.CANCELLED, "", "was cancelled"),
    ],
)
def test_first_lines(kind: FailureKind, signal: str, head: str) -> None:
    text = _render(kind=kind, signal=signal, exception="", rank=None, file="", others={})
    assert text.splitlines()[0] == f"✗ job ddp-ab2cd {head}"
    assert text.splitlines()[1].startswith(f"  {VERDICT.message}")


def test_name_and_earlier_attempts_are_shown() -> None:
    before = replace(VERDICT, message="rank 0 exited with code 3")
    status = replace(STATUS, name="mine", history=(before,), phase=Phase.STOPPING)
    lines = render_verdict(status).splitlines()
    assert lines[0] == "✗ job ddp-ab2cd (mine) is failing: user error"
    assert "  before that, attempt 0: rank 0 exited with code 3" in lines


def test_exit_codes() -> None:
    assert exit_code_of(replace(STATUS, phase=Phase.SUCCEEDED, verdict=None)) == 0
    assert exit_code_of(STATUS) == 1
    assert exit_code_of(replace(STATUS, phase=Phase.CANCELLED)) == 1
    not_started = replace(VERDICT, kind=FailureKind.START_FAILED)
    assert exit_code_of(replace(STATUS, verdict=not_started)) == 3
