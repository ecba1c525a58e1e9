"""Live view. Lines scroll, and the status line stays below them and is removed at the end."""

from __future__ import annotations

import io
import re
import time
from dataclasses import replace

import pytest

from windlass.client.jobs.live_view import (
    LiveView,
    QuietView,
    render_metric,
    render_progress,
    render_status_line,
)
from windlass.client.terminal import render_line, render_seconds
from windlass.wire.log_lines import LogLine
from windlass.wire.status import (
    Condition,
    FailureKind,
    JobStatus,
    Moment,
    Phase,
    Progress,
    RankStatus,
    Verdict,
)

ERASE = "\r\x1b[2K"


class Tty(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


def line(text, rank=0, node=0, stream="stdout", replaced=False):
    return LogLine(
        at_s=1.0, node=node, rank=rank, attempt=0, stream=stream, text=text, replaced=replaced
    )


def status(phase=Phase.RUNNING, states=("running", "running"), imported=True, **fields):
    moments = (Moment(name="imports done", at_s=1.0),) if imported else ()
    ranks = tuple(RankStatus(rank=i, node=0, state=state) for i, state in enumerate(states))
    base = {"job_id": "train-1", "name": "train-1", "engine": "local", "work": "train.py"}
    return JobStatus(
        **base,
        phase=phase,
        num_ranks=len(ranks),
        ranks=ranks,
        timeline=moments,
        created_at_s=100.0,
        **fields,
    )


def on_screen(text):
    """Return the lines that a terminal shows after `text`."""
    return [re.sub(r"\x1b\[[0-9;]*m", "", row.rpartition(ERASE)[2]) for row in text.split("\n")]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (status(Phase.PENDING), "train-1 pending 5.0s"),
        (status(Phase.STARTING), "train-1 starting 5.0s"),
        (status(imported=False), "train-1 importing 5.0s"),
        (status(), "train-1 2/2 ranks running 5.0s"),
        (status(states=("running", "returned")), "train-1 1/2 ranks running, 1 done 5.0s"),
        (status(attempt=1, restarts=3), "train-1 2/2 ranks running 5.0s · attempt 1"),
        (
            status(
                progress=Progress(step=5, total=10, metrics={"loss": 0.123456, "lr": 1}, eta_s=65.0)
            ),
            (
                "train-1 2/2 ranks running 5.0s · step 5/10 ━━━━━━━━━━────────── 50% · "
                "loss 0.1235 · lr 1 · 1m05s left"
            ),
        ),
        (status(progress=Progress(step=7)), "train-1 2/2 ranks running 5.0s · step 7"),
        (
            status(
                progress=Progress(
                    step=23, max_step=187, rank=1, total=400, metrics={"loss": 0.6}, eta_s=65.0
                )
            ),
            (
                "train-1 2/2 ranks running 5.0s · steps 23-187/400 ━─────────────────── 6% · "
                "1m05s left"
            ),
        ),
    ],
)
def test_the_status_line(shown, expected):
    assert render_status_line(shown, now_s=105.0) == expected


def test_user_progress_bar_is_shown_without_reports():
    assert render_status_line(status(), now_s=105.0, bar="40%|####").endswith(" · 40%|####")
    reported = status(progress=Progress(step=1))
    assert "####" not in render_status_line(reported, now_s=105.0, bar="40%|####")


@pytest.mark.parametrize(
    ("progress", "parts"),
    [
        (Progress(), []),
        (Progress(step=0, total=0), ["step 0"]),
        (Progress(step=15, total=10), ["step 15/10 ━━━━━━━━━━━━━━━━━━━━ 100%"]),
        (Progress(step=10, total=10, eta_s=0.0), ["step 10/10 ━━━━━━━━━━━━━━━━━━━━ 100%"]),
        (Progress(metrics={"mode": "eval"}), ["mode eval"]),
    ],
)
def test_progress(progress, parts):
    assert render_progress(progress, now_s=105.0) == parts


def test_metric_of_an_earlier_step_shows_the_step():
    values = {"loss": 0.5, "accuracy": 0.9}
    progress = Progress(step=163, max_step=163, metrics=values, metric_steps={"accuracy": 160})
    assert render_progress(progress) == ["step 163", "loss 0.5", "accuracy 0.9 (step 160)"]


@pytest.mark.parametrize(
    ("now_s", "max_step", "steps_per_s", "pace"),
    [
        (105.0, 20, 1.0, "1m05s left"),
        (142.0, 20, 1.0, "last step 42s ago"),
        (142.0, 20, 0.1, "1m05s left"),  # a step takes ten seconds
        (142.0, 20, None, "last step 42s ago"),
        (142.0, 90, 1.0, "rank 3 at step 20 for 42s"),
        (None, 20, 1.0, None),  # it has ended, so no time remains
    ],
)
def test_stalled_progress_shows_the_age_of_the_last_step(now_s, max_step, steps_per_s, pace):
    progress = Progress(
        step=20,
        max_step=max_step,
        rank=3,
        total=400,
        step_at_s=100.0,
        steps_per_s=steps_per_s,
        eta_s=65.0,
    )
    steps, *others = sorted(
        render_progress(progress, now_s=now_s), key=lambda part: "━" not in part
    )
    assert others == ([] if pace is None else [pace])
    assert steps.startswith("step")


def test_a_narrow_terminal_shows_the_age_of_the_last_step(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    messages = Tty()
    apart = Progress(step=31, max_step=400, rank=1, total=400, step_at_s=time.time() - 42.4)
    states = ("running", "returned", "returned")
    LiveView(out=io.StringIO(), messages=messages).show(status(states=states, progress=apart), [])
    assert " · rank 1 at step 31 for 42s" in on_screen(messages.getvalue())[-1]


def test_a_narrow_terminal_shows_whole_numbers(monkeypatch):
    monkeypatch.setenv("COLUMNS", "75")
    screen = Tty()
    view = LiveView(out=io.StringIO(), messages=screen)
    metrics = {"loss": 0.123456, "learning_rate": 0.000123}
    view.show(status(progress=Progress(step=5, total=10, metrics=metrics)), [])
    assert on_screen(screen.getvalue())[-1].endswith("· step 5/10 50% · loss 0.1235")


def test_a_bar_of_an_attempt_that_failed_is_not_shown():
    screen = Tty()
    view = LiveView(out=io.StringIO(), messages=screen)
    view.show(status(), [line("40%|####", replaced=True)])
    assert "####" in on_screen(screen.getvalue())[-1]
    screen = view._messages = Tty()
    view._drawn_s = 0.0
    failed = Verdict(kind=FailureKind.USER_ERROR, message="boom", attempt=0)
    view.show(status(history=(failed,)), [])
    assert "####" not in on_screen(screen.getvalue())[-1]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0.0s"), (0, "0.0s"), (1.24, "1.2s"), (9.94, "9.9s"), (42.4, "42s"), (59.6, "1m00s"),
        (185, "3m05s"), (3599.9, "1h00m"), (7800, "2h10m"), (360_000, "100h00m"),
    ],
)  # fmt: skip
def test_seconds(seconds, text):
    assert render_seconds(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1234567, "0.1235"),
        (1e-9, "1e-09"),
        (3, "3"),
        ("x", "x"),
        (None, "None"),
        (float("nan"), "nan (!)"),
        (float("-inf"), "-inf (!)"),
    ],
)
def test_metrics(value, text):
    assert render_metric(value) == text


def test_a_line_has_its_node_and_rank():
    assert render_line(line("hi \x1b[2Jthere", rank=3, node=1), color=False) == "[1/3] hi there"
    assert render_line(line("\x1b[31mred"), color=True).endswith(" \x1b[31mred\x1b[0m")


def test_destination_of_lines():
    out, messages = io.StringIO(), io.StringIO()
    view = LiveView(out=out, messages=messages)
    view.show(status(), [line("to out"), line("to err", rank=1, stream="stderr")])
    view.close()
    assert out.getvalue() == "[0/0] to out\n"
    assert messages.getvalue() == "[0/1] to err\n"  # no status line, because this is not a terminal


def test_on_a_terminal_the_status_line_is_drawn_and_erased():
    messages = Tty()
    view = LiveView(out=messages, messages=messages)
    view.show(status(), [])
    assert "2/2 ranks running" in on_screen(messages.getvalue())[-1]
    view.show(status(), [line("a line")])
    rows = on_screen(messages.getvalue())
    assert rows[0] == "[0/0] a line"
    assert "2/2 ranks running" in rows[-1]  # redrawn immediately below it
    view.close()
    assert on_screen(messages.getvalue()) == ["[0/0] a line", ""]


def test_an_ended_job_has_no_status_line():
    messages = Tty()
    view = LiveView(out=io.StringIO(), messages=messages)
    view.show(status(Phase.SUCCEEDED), [])
    view.close()
    assert messages.getvalue() == ""


def test_the_status_line_fits_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    messages = Tty()
    view = LiveView(out=io.StringIO(), messages=messages)
    metrics = {f"metric{i}": "two\nlines \x1b[2J" for i in range(20)}
    view.show(status(progress=Progress(step=1, metrics=metrics)), [])
    [row] = on_screen(messages.getvalue())
    assert row.startswith("train-1 2/2 ranks running")
    assert len(row) < 30


def test_no_color_on_a_terminal(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    messages = Tty()
    view = LiveView(out=messages, messages=messages)
    view.show(status(), [line("\x1b[31mred\x1b[0m")])
    view.close()
    assert "\x1b" not in messages.getvalue().replace(ERASE, "")
    assert "[0/0] red\n" in messages.getvalue()


def test_only_the_last_state_of_a_progress_bar_is_printed():
    out = io.StringIO()
    view = LiveView(out=out, messages=io.StringIO())
    view.show(status(), [line("10%", replaced=True), line("20%", replaced=True)])
    assert out.getvalue() == ""
    view.show(status(), [line("100%")])
    view.show(status(), [line("next 5%", replaced=True)])
    view.close()
    assert out.getvalue() == "[0/0] 100%\n[0/0] next 5%\n"
    view.close()
    assert out.getvalue().count("5%") == 1


def test_progress_bar_is_in_the_status_line():
    messages = Tty()
    view = LiveView(out=io.StringIO(), messages=messages)
    view.show(status(), [line("30%|###", replaced=True)])
    assert on_screen(messages.getvalue())[-1].endswith("30%|###")


def warning(message, reason="LogTruncated"):
    return Condition(type="warning", reason=reason, message=message, since_s=1.0)


def phase_condition(phase):
    return Condition(type=phase.value, reason="RanksRunning", message="", since_s=1.0)


def test_warnings_are_shown_once():
    messages = io.StringIO()
    view = LiveView(out=io.StringIO(), messages=messages)
    for _ in range(2):
        view.show(status(conditions=(warning("the disk is full"),)), [])
    view.show(status(conditions=(warning("the disk is full"), warning("so is the other"))), [])
    assert messages.getvalue() == "windlass: the disk is full\nwindlass: so is the other\n"


def test_restart_is_shown():
    messages = io.StringIO()
    view = LiveView(out=io.StringIO(), messages=messages)
    running = phase_condition(Phase.RUNNING)
    view.show(status(conditions=(running,), restarts=2), [])
    failed = Verdict(kind=FailureKind.KILLED, message="rank 1 was killed by SIGKILL")
    again = status(
        conditions=(running, phase_condition(Phase.STOPPING), replace(running, since_s=9.0)),
        history=(failed,),
        attempt=1,
        restarts=2,
    )
    view.show(again, [])
    view.show(again, [])
    assert messages.getvalue() == (
        "windlass: rank 1 was killed by SIGKILL; restarted as attempt 1\n"
    )


def test_interrupts_show_the_remaining_steps():
    messages = io.StringIO()
    view = LiveView(out=io.StringIO(), messages=messages)
    view.interrupted(now=False)
    view.show(status(states=("running", "returned", "running", "pending")), [])
    view.interrupted(now=False)
    view.interrupted(now=True)
    assert messages.getvalue().splitlines() == [
        "windlass: stopping 0 ranks; Ctrl-C again to kill them now",
        "windlass: stopping 3 ranks; Ctrl-C again to kill them now",
        "windlass: killing every rank now",
    ]


def test_the_quiet_view_is_quiet(capsys):
    view = QuietView()
    view.show(status(), [line("x")])
    view.interrupted(now=True)
    view.close()
    assert capsys.readouterr() == ("", "")


def test_blocker_is_wrapped_at_words_and_hint_starts_a_line():
    message = ("each pod requests more than there is, " * 4).rstrip()
    hint = "`windlass compute rm my-idle-compute`"
    blocker = Condition(type="blocker", reason="X", message=message, hint=hint, since_s=1.0)
    blocked = status(Phase.PENDING, conditions=(blocker,))
    for messages in (Tty(), io.StringIO()):
        LiveView(out=io.StringIO(), messages=messages).show(blocked, [])
        *whole, _ = messages.getvalue().split("\n")
        assert " ".join(one.strip() for one in whole) == f"windlass: {message} -> {hint}"
        if messages.isatty():
            assert whole[-1] == "  -> `windlass compute rm my-idle-compute`"
            assert max(map(len, whole)) < 100
        else:
            assert len(whole) == 1
