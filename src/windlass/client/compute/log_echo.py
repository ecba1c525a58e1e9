"""What ranks print during a call, on the caller's own streams, as it comes.

Lines of stdout go to stdout, of stderr to stderr, each with its rank; those of a single rank as they are.
"""

from __future__ import annotations

import sys

from windlass.client.compute.wait_line import waiting_line
from windlass.client.jobs.live_view import render_line
from windlass.client.terminal import clean, wants_colour
from windlass.wire.log_lines import PART, REPLACED, LogLine, LogRecord, number_node, read_record


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
