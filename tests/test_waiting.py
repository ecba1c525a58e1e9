"""Wait for a condition, which ends at the deadline and logs that it waits."""

from __future__ import annotations

import time

from windlass import waiting
from windlass.waiting import wait_until


def test_true_condition_is_checked_once():
    asked = []
    assert wait_until(lambda: asked.append(1) is None, timeout_s=0)
    assert asked == [1]


def test_it_checks_until_the_condition_is_true():
    answers = iter([False, False, True])
    assert wait_until(lambda: next(answers), timeout_s=None, every_s=0)
    assert list(answers) == []


def test_it_ends_at_the_deadline_and_not_before():
    started_s = time.monotonic()
    assert not wait_until(lambda: False, timeout_s=0.05, every_s=10)
    assert 0.05 <= time.monotonic() - started_s < 10


def test_passed_deadline_still_checks_once():
    assert not wait_until(lambda: False, timeout_s=-1)
    assert wait_until(lambda: True, timeout_s=-1)


def test_it_logs_how_long_it_has_waited(monkeypatch):
    monkeypatch.setattr(waiting, "_SAY_EVERY_S", 0.01)
    said: list[float] = []
    assert wait_until(lambda: len(said) == 3, timeout_s=30, every_s=0.001, say=said.append)
    assert said == sorted(said)
    assert said[0] >= 0.01


def test_short_wait_is_not_logged():
    said: list[float] = []
    wait_until(lambda: False, timeout_s=0.02, every_s=0.001, say=said.append)
    assert said == []
