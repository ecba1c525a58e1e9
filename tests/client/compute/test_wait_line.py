"""Progress of waits. Logs it once and then only changes, and a terminal has one line that is rewritten."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import sys

import pytest

from windlass.client import terminal as module
from windlass.client.terminal import WaitLine, print_notice

ERASE = "\r\x1b[2K"


class Terminal:
    """Terminal with 80 columns."""

    def __init__(self):
        self._above, below = pty.openpty()
        os.set_blocking(self._above, False)
        self.stream = os.fdopen(below, "w")

    def read(self):
        """Return what was written since the last read."""
        found = b""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._above, 1 << 16):
                found += data
        return found.decode()

    def close(self):
        self.stream.close()
        os.close(self._above)


@pytest.fixture
def terminal(monkeypatch):
    found = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(module, "_REDRAW_S", 0.0)

    yield found
    found.close()


def test_pipe_gets_the_first_text_and_then_changes(monkeypatch):
    piped = io.StringIO()
    monkeypatch.setattr(sys, "stderr", piped)
    line = WaitLine()
    for _ in range(5):
        line.show("c: waiting for node 1")
    for _ in range(5):
        line.show("c: waiting for node 1: each pod requests 8 GPUs")
    line.end()
    line.show("c: waiting for node 1")
    assert piped.getvalue().splitlines() == [
        "windlass: c: waiting for node 1",
        "windlass: c: waiting for node 1: each pod requests 8 GPUs",
        "windlass: c: waiting for node 1",
    ]


def test_a_terminal_has_one_line_that_is_rewritten(terminal, monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    line = WaitLine()
    for _ in range(3):
        line.show("c: waiting for node 1")
    sent = terminal.read()
    assert "\n" not in sent
    assert sent.count("windlass: c: waiting for node 1 (0.0s)") == 3
    assert sent.count(ERASE) == 2
    line.end()
    assert terminal.read() == ERASE


def test_text_too_long_for_the_terminal_is_written_once_in_full(terminal, monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    line = WaitLine()
    message = f"c: {'each pod requests more than there is, ' * 4}".rstrip()
    for _ in range(3):
        line.show(message, "ask for less")
    sent = terminal.read()
    *whole, below = sent.split("\r\n")
    assert " ".join(line.strip() for line in whole) == f"windlass: {message} -> ask for less"
    assert whole[-1] == "  -> ask for less", "what to do begins a line"
    assert all(len(line) < 80 for line in whole), "and no word is torn"
    assert below.count("windlass: waiting (0.0s)") == 3


def test_other_lines_appear_above_it(terminal, monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    line = module.waiting_line
    line.show("c: waiting for node 1")
    terminal.read()
    print_notice("c: 1 -> 2 nodes")
    assert terminal.read() == f"{ERASE}windlass: c: 1 -> 2 nodes\r\n"
    line.show("c: waiting for node 1")
    assert terminal.read().startswith("windlass: c: waiting for node 1 (")
    line.end()


def test_its_text_does_not_move_the_cursor(terminal, monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    line = WaitLine()
    line.show("c: \x1b[2Jan image\nof two lines")
    assert terminal.read() == "windlass: c: an image of two lines (0.0s)"
