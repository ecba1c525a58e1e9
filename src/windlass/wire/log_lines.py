"""Lines of ranks' logs, as records of a rank's log file and as lines of a pod's log.

    [rank 3] step 7 loss 0.25
    [rank 3, attempt 1, stderr] a warning
    [node 1] what a framework's own processes print

This module performs no I/O. Files are read in `wire.log_files`, pipes in `agent.node.rank_streams`, and
terminals are written in `client.jobs.live_view`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone

from windlass.errors import SpecError

FULL, PART, REPLACED = "F", "P", "R"
STREAMS = ("stdout", "stderr")
_LINE = re.compile(
    rb"\[(rank|node) ([0-9]{1,9})(?:, attempt ([0-9]{1,9}))?(, stderr)?\] ?(.*)", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record of a log file."""

    at_s: float
    stream: str
    tag: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One whole line of one rank, for people to read."""

    at_s: float
    node: int
    rank: int  # negative for a framework's own processes on the node, see `pseudo_rank`
    attempt: int
    stream: str
    text: str
    replaced: bool = False  # overwritten by a progress bar


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """Filter that selects log lines."""

    rank: int | None = None
    node: int | None = None
    attempt: int | None = None
    since_s: float | None = None
    grep: str | None = None
    follow: bool = False

    def __post_init__(self) -> None:
        try:
            re.compile(self.grep or "")
        except re.error as error:
            raise SpecError(
                f"{self.grep!r} is not a valid regular expression: {error}",
                hint="put a backslash before characters like [ ( * + ?",
            ) from error

    def matches(self, line: LogLine) -> bool:
        """Return whether a line matches. Rank, node and attempt already select the files."""
        if self.since_s is not None and line.at_s < self.since_s:
            return False
        return self.grep is None or re.search(self.grep, line.text) is not None


def pseudo_rank(node: int) -> int:
    """Return the negative pseudo-rank of a framework's own processes on a node."""
    return -1 - node


def render_prefix(at_s: float, stream: str, tag: str) -> bytes:
    """Return the prefix of a record's data: time, stream and tag."""
    when = datetime.fromtimestamp(at_s, tz=timezone.utc)
    return f"{when:%Y-%m-%dT%H:%M:%S.%f}Z {stream} {tag} ".encode()


def read_record(line: bytes) -> LogRecord | None:
    """Return the record in a line of a log file, or None if it is cut off (by a full disk)."""
    when, _, rest = line.rstrip(b"\n").partition(b" ")
    stream, _, rest = rest.partition(b" ")
    tag, _, data = rest.partition(b" ")
    kind = _KINDS.get(tag)
    at_s = _read_time(when)
    if kind is None or at_s is None:
        return None
    return LogRecord(at_s, stream.decode(errors="replace"), kind, data)


_KINDS = {kind.encode(): kind for kind in (FULL, PART, REPLACED)}


@functools.lru_cache(maxsize=64)  # lines that were read from a pipe together share their time
def _read_time(when: bytes) -> float | None:
    try:
        # fromisoformat accepts a Z only since Python 3.11
        at = datetime.fromisoformat(when.decode("ascii").replace("Z", "+00:00"))
    except ValueError:
        return None
    return None if at.tzinfo is None else at.timestamp()


def render_pod_lines(records: bytes, *, rank: int, attempt: int) -> bytes:
    """Return records of a rank's log file as lines for the pod's log, without replaced lines."""
    source = f"[rank {rank}" if rank >= 0 else f"[node {-1 - rank}"
    source += f", attempt {attempt}" if attempt else ""
    heads = {"stdout": f"{source}] ".encode(), "stderr": f"{source}, stderr] ".encode()}
    lines = []
    for line in records.split(b"\n"):
        record = read_record(line) if line else None
        if record is not None and record.tag != REPLACED:
            lines.append(heads.get(record.stream, heads["stdout"]) + record.data + b"\n")
    return b"".join(lines)


def read_pod_log(log: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield the ranks' lines in a pod's log with timestamps, as (rank, attempt, log file record)."""
    for line in log.splitlines():
        when, _, text = line.partition(b" ")
        line_match = _LINE.match(text)
        at_s = read_line_time(when)
        if line_match and at_s is not None:
            kind, number, attempt, is_stderr, data = line_match.groups()
            prefix = render_prefix(at_s, "stderr" if is_stderr else "stdout", FULL)
            rank = int(number) if kind == b"rank" else pseudo_rank(int(number))
            yield rank, int(attempt or 0), prefix + data + b"\n"


def read_line_time(when: bytes) -> float | None:
    """Return the time that a container runtime wrote before a line, or None if there is none."""
    # Python parses microseconds, the runtime writes nanoseconds
    text = re.sub(rb"(\.\d{6})\d+", rb"\1", when)
    record = read_record(text + b" stdout F ")
    return record.at_s if record else None
