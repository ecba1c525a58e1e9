"""Reader of a job's log files: whole, merged by time, or as they grow.

The files serve as the buffer, so a slow reader costs no memory. A reader that reconnects continues from its
offset. This module handles the folder and the format of records, not terminals.
"""

from __future__ import annotations

import codecs
import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from windlass.plan.plan import Plan
from windlass.wire.job_folder import JobFolder
from windlass.wire.log_lines import (
    FULL,
    PART,
    REPLACED,
    LogLine,
    LogQuery,
    LogRecord,
    pseudo_rank,
    read_record,
)
from windlass.wire.status import read_world

_READ_BYTES = 1 << 20
_MAX_LINE_BYTES = 64 << 10


@dataclass(slots=True)
class RankLog:
    """One rank's log in one attempt. Each read continues where the last one ended."""

    path: Path
    node: int
    rank: int
    attempt: int
    offset: int = 0
    _tail: bytes = b""
    _parts: dict[str, list[LogRecord]] = field(default_factory=dict)

    def read_new(self) -> Iterator[LogLine]:
        """Yield the lines completed since the last call, from at most 1 MiB of the file."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read(_READ_BYTES)
        except FileNotFoundError:
            return
        yield from self.feed(data)

    def feed(self, data: bytes) -> Iterator[LogLine]:
        """Yield the lines that these bytes complete. The bytes must directly follow the previous ones."""
        self.offset += len(data)
        *lines, self._tail = (self._tail + data).split(b"\n")
        if len(self._tail) > _READ_BYTES:  # not a record, because agents split those at 16 KiB
            self._tail = self._tail[:_MAX_LINE_BYTES]
        for line in lines:
            record = read_record(line)
            if record is not None:
                yield from self._add(record)

    def skip_to(self, since_s: float) -> None:
        """Move to a position less than 1 MiB before the first record at or after `since_s`.

        Bisects the file, which works because its records are in chronological order.
        """
        try:
            with self.path.open("rb") as file:
                low, high = 0, self.path.stat().st_size
                while high - low > _READ_BYTES:
                    middle = (low + high) // 2
                    file.seek(middle)
                    file.readline(_READ_BYTES)  # the rest of a record
                    start = file.tell()
                    record = read_record(file.readline(_READ_BYTES))
                    if record is not None and record.at_s < since_s:
                        low = start
                    else:
                        high = middle
                self.offset = low
        except FileNotFoundError:
            return

    def read_rest(self) -> Iterator[LogLine]:
        """Yield the incomplete last line of each stream."""
        for stream in list(self._parts):
            yield from self._finish(stream)

    def __iter__(self) -> Iterator[LogLine]:
        before = -1
        while self.offset != before:
            before = self.offset
            yield from self.read_new()
        yield from self.read_rest()

    def _add(self, record: LogRecord) -> Iterator[LogLine]:
        if record.tag == FULL and record.stream not in self._parts:  # by far the most common case
            yield self._make_line(record, record.data.decode("utf-8", "backslashreplace"))
            return
        parts = self._parts.setdefault(record.stream, [])
        parts.append(record)
        if record.tag != PART:
            yield from self._finish(record.stream)
        elif sum(len(part.data) for part in parts) >= _MAX_LINE_BYTES:
            yield from self._finish(record.stream, has_more=True)

    def _finish(self, stream: str, *, has_more: bool = False) -> Iterator[LogLine]:
        parts = self._parts.pop(stream, [])
        decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        text = decoder.decode(b"".join(part.data for part in parts), final=not has_more)
        if half := decoder.getstate()[0]:  # a character that continues in the next piece
            self._parts[stream] = [LogRecord(parts[-1].at_s, stream, PART, half)]
        if not parts or (not text and parts[-1].tag != FULL):
            return
        yield self._make_line(parts[0], text, replaced=parts[-1].tag == REPLACED)

    def _make_line(self, first: LogRecord, text: str, *, replaced: bool = False) -> LogLine:
        return LogLine(
            at_s=first.at_s,
            node=self.node,
            rank=self.rank,
            attempt=self.attempt,
            stream=first.stream,
            text=text,
            replaced=replaced,
        )


def find_logs(folder: JobFolder, plan: Plan, query: LogQuery) -> list[RankLog]:
    """Return the log files that a query selects, oldest attempt first."""
    logs = []
    for attempt in folder.attempts():
        if query.attempt not in (None, attempt):
            continue
        for node in read_world(folder, plan, attempt):
            if query.node not in (None, node.index):
                continue
            logs += [
                RankLog(folder.log(attempt, rank), node.index, rank, attempt)
                for rank in (*node.ranks, *_find_others(plan, node.index))
                if query.rank in (None, rank)
            ]
    if query.since_s is not None:
        for log in logs:
            log.skip_to(query.since_s)
    return logs


def _find_others(plan: Plan, node: int) -> tuple[int, ...]:
    """Return the number of the node's own log, if the framework has processes of its own there."""
    return () if plan.sizes is None else (pseudo_rank(node),)


@dataclass(slots=True)
class LogFiles:
    """The lines of a job that match a query: all existing ones, or new ones as they are written."""

    folder: JobFolder
    plan: Plan
    query: LogQuery
    _logs: dict[Path, RankLog] = field(default_factory=dict)

    def read_all(self) -> Iterator[LogLine]:
        """Yield all lines that exist now, in the order they were written."""
        logs = find_logs(self.folder, self.plan, self.query)
        for line in heapq.merge(*logs, key=lambda line: line.at_s):
            if self.query.matches(line):
                yield line

    def read_new(self) -> list[LogLine]:
        """Return the new lines of all ranks in chronological order. Includes new log files."""
        for log in find_logs(self.folder, self.plan, self.query):
            self._logs.setdefault(log.path, log)
        lines = [line for log in self._logs.values() for line in log.read_new()]
        return self._wanted(lines)

    def read_rest(self) -> list[LogLine]:
        """Return the incomplete last lines. Call this once the job has ended."""
        return self._wanted([line for log in self._logs.values() for line in log.read_rest()])

    def _wanted(self, lines: list[LogLine]) -> list[LogLine]:
        return sorted(
            (line for line in lines if self.query.matches(line)), key=lambda line: line.at_s
        )
