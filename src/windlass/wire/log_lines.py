"""Lines of ranks' logs: records of a rank's log file, and the same lines in the log of its pod.

    [rank 3] step 7 loss 0.25
    [rank 3, attempt 1, stderr] a warning
    [node 1] what a framework's own processes print

Pure: files are `wire.log_files`, pipes are `agent.node.rank_streams`, terminals are `client.jobs.live_view`.
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
    """One record as it lies on disk."""

    at_s: float
    stream: str
    tag: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One whole line of one rank, as a person reads it."""

    at_s: float
    node: int
    rank: int  # negative: of a framework's own processes on the node, `number_node`
    attempt: int
    stream: str
    text: str
    replaced: bool = False  # a progress bar drew over it


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """Which lines are wanted."""

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
                f"{self.grep!r} is not a regular expression: {error}",
                hint="put a backslash before characters like [ ( * + ?",
            ) from error

    def wants(self, line: LogLine) -> bool:
        """Whether a line answers the query; rank, node and attempt already choose the files."""
        if self.since_s is not None and line.at_s < self.since_s:
            return False
        return self.grep is None or re.search(self.grep, line.text) is not None


def number_node(node: int) -> int:
    """The number, among those of ranks, of what a framework's own processes on a node print."""
    return -1 - node


def render_prefix(at_s: float, stream: str, tag: str) -> bytes:
    """What stands before a record's data."""
    when = datetime.fromtimestamp(at_s, tz=timezone.utc)
    return f"{when:%Y-%m-%dT%H:%M:%S.%f}Z {stream} {tag} ".encode()


def read_record(line: bytes) -> LogRecord | None:
    """One line of a log file; None when it is not one (a disk filled up in its middle)."""
    when, _, rest = line.rstrip(b"\n").partition(b" ")
    stream, _, rest = rest.partition(b" ")
    tag, _, data = rest.partition(b" ")
    kind = _KINDS.get(tag)
    at_s = _read_time(when)
    if kind is None or at_s is None:
        return None
    return LogRecord(at_s, stream.decode(errors="replace"), kind, data)


_KINDS = {kind.encode(): kind for kind in (FULL, PART, REPLACED)}


@functools.lru_cache(maxsize=64)  # what was read from a pipe at once has one time
def _read_time(when: bytes) -> float | None:
    try:
        # fromisoformat takes a Z only from Python 3.11 on
        at = datetime.fromisoformat(when.decode("ascii").replace("Z", "+00:00"))
    except ValueError:
        return None
    return None if at.tzinfo is None else at.timestamp()


def render_pod_lines(records: bytes, *, rank: int, attempt: int) -> bytes:
    """Records of a rank's log file as lines for the pod's log; drawings of progress bars are left out."""
    who = f"[rank {rank}" if rank >= 0 else f"[node {-1 - rank}"
    who += f", attempt {attempt}" if attempt else ""
    heads = {"stdout": f"{who}] ".encode(), "stderr": f"{who}, stderr] ".encode()}
    lines = []
    for line in records.split(b"\n"):
        record = read_record(line) if line else None
        if record is not None and record.tag != REPLACED:
            lines.append(heads.get(record.stream, heads["stdout"]) + record.data + b"\n")
    return b"".join(lines)


def read_pod_log(log: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Each rank's line as (rank, attempt, record of a log file), from a pod's log with times."""
    for line in log.splitlines():
        when, _, text = line.partition(b" ")
        line_match = _LINE.match(text)
        at_s = read_line_time(when)
        if line_match and at_s is not None:
            kind, number, attempt, is_stderr, data = line_match.groups()
            prefix = render_prefix(at_s, "stderr" if is_stderr else "stdout", FULL)
            rank = int(number) if kind == b"rank" else number_node(int(number))
            yield rank, int(attempt or 0), prefix + data + b"\n"


def read_line_time(when: bytes) -> float | None:
    """The time that a container runtime wrote before a line; None where there is none."""
    # nanoseconds are more than Python reads
    text = re.sub(rb"(\.\d{6})\d+", rb"\1", when)
    record = read_record(text + b" stdout F ")
    return record.at_s if record else None
