"""Output on the caller's terminal: the current wait, and what ranks print during a call.

A process has one line for waits, rewritten as time passes; other output erases it first. The ranks' stdout
goes to stdout and their stderr to stderr, each line with its rank unless there is only one.
"""

from __future__ import annotations

import shutil
import sys
import time

from windlass.client import terminal
from windlass.client.jobs.live_view import render_line, render_seconds
from windlass.client.terminal import can_draw, clean, one_line, paint, wants_colour, wrap_advice
from windlass.wire.log_lines import PART, REPLACED, LogLine, LogRecord, number_node, read_record
from windlass.wire.status import add_hint

_REDRAW_S = 0.5


class WaitLine:
    """The line of this process."""

    def __init__(self) -> None:
        self._text = ""
        self._since_s = 0.0
        self._drawn_s = 0.0
        self._is_drawn = False

    def show(self, message: str, hint: str = "") -> None:
        """This is waited for. What was said already is not said again, only for how long by now."""
        message, hint = one_line(message), one_line(hint)
        text, now_s = add_hint(message, hint), time.monotonic()
        is_new = text != self._text
        if is_new:
            self._text, self._since_s = text, now_s
        if not can_draw(sys.stderr):
            if is_new:
                self._write(f"windlass: {text}\n")
            return
        if is_new and len(self._render(text, now_s)) > _width():  # then whole, and above the line
            lines = wrap_advice(f"windlass: {message}", hint, _width())
            self._write(f"{self._begin()}{lines}\n")
            self._is_drawn = False
        if is_new or now_s - self._drawn_s >= _REDRAW_S:
            self._draw(now_s)

    def _draw(self, now_s: float) -> None:
        line = self._render(self._text, now_s)
        if len(line) > _width():
            line = self._render("waiting", now_s)
        self._write(self._begin() + paint(line, 2, colour=wants_colour(sys.stderr)))
        self._is_drawn, self._drawn_s = True, now_s

    def _render(self, text: str, now_s: float) -> str:
        return f"windlass: {text} ({render_seconds(now_s - self._since_s)})"

    def _begin(self) -> str:
        return "\r\x1b[2K" if self._is_drawn else ""

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    def erase(self) -> None:
        """Something else is written, or nothing is waited for any more."""
        if self._is_drawn:
            self._write("\r\x1b[2K")
            self._is_drawn = False

    def end(self) -> None:
        """What was waited for has come: the same is news when it is waited for again."""
        self.erase()
        self._text = ""


def _width() -> int:
    return shutil.get_terminal_size().columns - 1


waiting_line = WaitLine()


def say(text: str) -> None:
    """One line of something else."""
    waiting_line.erase()
    terminal.say(text)


class LogEcho:
    """Shows the lines of one call."""

    def __init__(self, *, num_ranks: int, procs: int = 1) -> None:
        self._is_alone = num_ranks == 1
        self._procs = procs  # on each node
        self._begun: dict[tuple[int, str], bytes] = {}  # lines that have not ended

    def show(self, rank: int, data: bytes) -> None:
        """Records of one rank's log."""
        for line in data.splitlines(keepends=True):
            record = read_record(line)
            if record is not None:
                self._take(rank, record)

    def _take(self, rank: int, record: LogRecord) -> None:
        key = (rank, record.stream)
        if record.tag == REPLACED:
            self._begun.pop(key, None)
            return
        text = self._begun.pop(key, b"") + record.data
        if record.tag == PART:
            self._begun[key] = text
            return
        self._print(rank, record.at_s, record.stream, text)

    def close(self) -> None:
        """Show lines that never ended."""
        for (rank, stream), text in self._begun.items():
            self._print(rank, 0.0, stream, text)
        self._begun.clear()

    def _print(self, rank: int, at_s: float, stream: str, data: bytes) -> None:
        out = sys.stdout if stream == "stdout" else sys.stderr
        text = data.decode(errors="replace")
        colour = wants_colour(out)
        is_rank = rank >= 0
        node = rank // self._procs if is_rank else number_node(rank)
        line = LogLine(at_s=at_s, node=node, rank=rank, attempt=0, stream=stream, text=text)
        is_plain = self._is_alone and is_rank
        shown = clean(text, colour=colour) if is_plain else render_line(line, colour=colour)
        waiting_line.erase()
        out.write(shown + "\n")
        out.flush()
