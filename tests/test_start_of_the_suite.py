"""Signals and descriptors of the suite, which are those of a terminal however it is started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
NOHUP = """
trap '' INT HUP QUIT TERM
exec 9>/dev/null
exec "$@" </dev/null
"""


def test_programs_start_as_in_a_terminal():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        assert signal.getsignal(number) is not signal.SIG_IGN, number
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
    listing = [sys.executable, "-c", "import os; print(sorted(map(int, os.listdir('/dev/fd'))))"]
    inherited = subprocess.check_output(listing, text=True, close_fds=False)
    assert inherited == "[0, 1, 2, 3]\n"  # the last one lists them


def test_programs_under_nohup_start_as_in_a_terminal():
    this = f"{__file__}::{test_programs_start_as_in_a_terminal.__name__}"
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    ran = subprocess.run(
        ["sh", "-c", NOHUP, "sh", sys.executable, "-m", "pytest", "-p", "no:cacheprovider", this],
        cwd=ROOT,
        env={**env, "LANG": "C"},
        umask=0o077,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
