"""Text for terminals: messages of Windlass, the current wait, and the output of ranks during a call.

Output of ranks must not control the terminal. Colors (SGR) are kept. Every other escape sequence is removed,
and so is every control character except tab and newline. A process has one line for waits, which is
rewritten as time passes, and other output erases it first. A call's stdout goes to stdout and its stderr to
stderr. Each line has its rank, unless there is only one rank.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
import time
from typing import TextIO

from windlass.wire.log_lines import PART, REPLACED, LogLine, LogRecord, pseudo_rank, read_record
from windlass.wire.status import add_hint

_SGR = re.compile(r"\x1b\[[0-9;:]*m")
_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: titles, clipboards, links
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"  # DCS, SOS, PM, APC
    r"|\x1b\[[0-?]*[ -/]*[@-~]?"  # CSI: cursor, screen
    r"|\x1b[ -/]*[0-~]?"  # all others
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_RESET = "\x1b[0m"
_PALETTE = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)


def clean(text: str, *, color: bool) -> str:
    """Return the text without sequences that move the cursor, set the title or ring the bell."""
    if "\x1b" in text:
        kept = _ESCAPES.sub(lambda m: m[0] if color and _SGR.fullmatch(m[0]) else "", text)
        text = kept + _RESET if "\x1b" in kept else kept
    return _CONTROLS.sub(lambda m: m[0] if m[0] == "\x1b" else "", text)


def one_line(text: str) -> str:
    """Return untrusted text as one line without control characters."""
    return clean(" ".join(text.split()), color=False)


def print_notice(text: str) -> None:
    """Write one line to stderr, in place of the current wait. stdout is for data."""
    waiting_line.erase()
    sys.stderr.write(f"windlass: {clean(text, color=False)}\n")
    sys.stderr.flush()


def paint(text: str, code: int | str, *, color: bool) -> str:
    """Return the text in a color, if `color` is True."""
    return f"\x1b[{code}m{text}{_RESET}" if color else text


def render_line(line: LogLine, *, color: bool) -> str:
    """Return one line with its `[node/rank]`, or `[node]` for a line that no rank wrote."""
    source = f"[{line.node}/{line.rank}]" if line.rank >= 0 else f"[{line.node}]"
    prefix = paint(source, rank_color(line.rank), color=color)
    return f"{prefix} {clean(line.text, color=color)}"


def render_seconds(seconds: float) -> str:
    """Render a duration as 1.2s, 42s, 3m05s or 2h10m."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def wrap_advice(message: str, hint: str, width: int) -> str:
    """Wrap a message at spaces, so that names can be copied. The hint starts on its own line."""
    lines = _wrap(message, width, indent="  ")
    if hint:
        lines += _wrap(f"  -> {hint}", width, indent="     ")
    return "\n".join(lines)


def _wrap(text: str, width: int, *, indent: str) -> list[str]:
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def rank_color(rank: int) -> int:
    return _PALETTE[rank % len(_PALETTE)]


def wants_color(stream: TextIO) -> bool:
    """Return whether to use colors on a stream: a terminal without NO_COLOR."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or is_terminal(stream)


def can_draw(stream: TextIO) -> bool:
    """Return whether lines on this stream can be erased and redrawn."""
    return is_terminal(stream) and os.environ.get("TERM") != "dumb"


def is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


_REDRAW_S = 0.5


class WaitLine:
    """Line on stderr that shows what this process is waiting for."""

    def __init__(self) -> None:
        self._text = ""
        self._since_s = 0.0
        self._drawn_s = 0.0
        self._is_drawn = False

    def show(self, message: str, hint: str = "") -> None:
        """Show what is waited for. A message that is already shown only gets a new duration."""
        message, hint = one_line(message), one_line(hint)
        text, now_s = add_hint(message, hint), time.monotonic()
        is_new = text != self._text
        if is_new:
            self._text, self._since_s = text, now_s
        if not can_draw(sys.stderr):
            if is_new:
                self._write(f"windlass: {text}\n")
            return
        if is_new and len(self._render(text, now_s)) > _width():  # printed in full above the line
            lines = wrap_advice(f"windlass: {message}", hint, _width())
            self._write(f"{self._begin()}{lines}\n")
            self._is_drawn = False
        if is_new or now_s - self._drawn_s >= _REDRAW_S:
            self._draw(now_s)

    def _draw(self, now_s: float) -> None:
        line = self._render(self._text, now_s)
        if len(line) > _width():
            line = self._render("waiting", now_s)
        self._write(self._begin() + paint(line, 2, color=wants_color(sys.stderr)))
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
        """Erase the line before other output, or at the end of the wait."""
        if self._is_drawn:
            self._write("\r\x1b[2K")
            self._is_drawn = False

    def end(self) -> None:
        """End the wait and forget its message, so that a later wait prints it again."""
        self.erase()
        self._text = ""


def _width() -> int:
    return shutil.get_terminal_size().columns - 1


waiting_line = WaitLine()


class LogEcho:
    """Printer for the log lines of one call."""

    def __init__(self, *, num_ranks: int, procs: int = 1) -> None:
        self._is_alone = num_ranks == 1
        self._procs = procs  # ranks on each node
        self._begun: dict[tuple[int, str], bytes] = {}  # lines that have not ended

    def show(self, rank: int, data: bytes) -> None:
        """Print records of the log of one rank."""
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
        """Print unfinished lines."""
        for (rank, stream), text in self._begun.items():
            self._print(rank, 0.0, stream, text)
        self._begun.clear()

    def _print(self, rank: int, at_s: float, stream: str, data: bytes) -> None:
        out = sys.stdout if stream == "stdout" else sys.stderr
        text = data.decode(errors="replace")
        color = wants_color(out)
        is_rank = rank >= 0
        node = rank // self._procs if is_rank else pseudo_rank(rank)
        line = LogLine(at_s=at_s, node=node, rank=rank, attempt=0, stream=stream, text=text)
        is_plain = self._is_alone and is_rank
        shown = clean(text, color=color) if is_plain else render_line(line, color=color)
        waiting_line.erase()
        out.write(shown + "\n")
        out.flush()
