"""What the ranks of one call printed, read from the lead of its compute: all of it, or as it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from windlass.wire.log_files import RankLog
from windlass.wire.log_lines import LogLine, LogQuery
from windlass.wire.messages.calls import CallLogsTold


class CallLogs:
    """A reader as engines have it; `ask` gets what came since the given offsets."""

    def __init__(
        self, ask: Callable[[Mapping[str, int]], tuple[CallLogsTold, bytes]], query: LogQuery
    ) -> None:
        self._ask = ask
        self._query = query
        self._logs: dict[int, RankLog] = {}

    def read_all(self) -> Iterator[LogLine]:
        """Every line that is there."""
        yield from self._order([*self.read_new(), *self.read_rest()])

    def read_new(self) -> list[LogLine]:
        """Lines that came since the last call."""
        told, data = self._ask({str(rank): log.offset for rank, log in self._logs.items()})
        body = memoryview(data)
        lines: list[LogLine] = []
        for rank, node, size in told.files:
            # never opened: its lines come from the lead
            log = self._logs.setdefault(rank, RankLog(Path(), node, rank, 0))
            lines += log.feed(bytes(body[:size]))
            body = body[size:]
        return self._order(lines)

    def read_rest(self) -> list[LogLine]:
        """Pieces of lines that will never end, once the call has."""
        return self._order([line for log in self._logs.values() for line in log.read_rest()])

    def _order(self, lines: list[LogLine]) -> list[LogLine]:
        return sorted((line for line in lines if self._wants(line)), key=lambda line: line.at_s)

    def _wants(self, line: LogLine) -> bool:
        query = self._query
        is_chosen = query.rank in (None, line.rank) and query.node in (None, line.node)
        return is_chosen and query.wants(line)
