"""A rank's lines in its pod's own log: how they are written there, and read back when no agent is left.

    [rank 3] step 7 loss 0.25
    [rank 3, attempt 1, stderr] a warning
    [node 1] what a framework's own processes print

Times are the container runtime's. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from windlass.wire.log_lines import FULL, REPLACED, number_node, read_record, render_prefix

_LINE = re.compile(
    rb"\[(rank|node) ([0-9]{1,9})(?:, attempt ([0-9]{1,9}))?(, stderr)?\] ?(.*)", re.DOTALL
)


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
