"""Stopping the launcher stops the ranks as user code expects."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest


@pytest.fixture(scope="module", params=["torchrun", "windlass"])
def side(request):
    return request.param


def stop(launch, side, number, *words):
    ran = launch(side, "signals.py", *words, procs=2, stop_with=int(number))
    return ran, sorted(path.name for path in ran.project.glob("saved-*"))


def test_ctrl_c_is_a_keyboard_interrupt_in_every_rank(launch, side):
    ran, saved = stop(launch, side, signal.SIGINT)
    assert saved == [
        *("saved-0-KeyboardInterrupt.txt", "saved-0-finally.txt"),
        *("saved-1-KeyboardInterrupt.txt", "saved-1-finally.txt"),
    ], ran.output
    assert ran.code != 0


def test_sigterm_reaches_the_handlers_of_every_rank(launch, side):
    ran, saved = stop(launch, side, signal.SIGTERM, "handler")
    assert saved == [
        *("saved-0-SIGTERM handler.txt", "saved-0-finally.txt"),
        *("saved-1-SIGTERM handler.txt", "saved-1-finally.txt"),
    ], ran.output
    assert ran.code != 0


UNDER_NOHUP = """
trap '' HUP QUIT
exec "$@" </dev/null
"""
LOOK = """
import signal
print([signal.getsignal(number) is signal.SIG_IGN for number in (signal.SIGHUP, signal.SIGQUIT)])
"""


@pytest.mark.parametrize("words", [[], ["-m", "windlass.cli.main", "run"]], ids=["python", "rank"])
def test_a_rank_under_nohup_ignores_what_python_ignores(tmp_path, words):
    (tmp_path / "look.py").write_text(LOOK)
    ran = subprocess.run(
        ["sh", "-c", UNDER_NOHUP, "sh", sys.executable, *words, "look.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "[True, True]\n" in ran.stdout, ran.stdout + ran.stderr
