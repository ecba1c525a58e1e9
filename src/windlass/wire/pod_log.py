"""A rank's lines in its pod's own log: how they are written there, and read back when no agent is left.

    [rank 3] step 7 loss 0.25
    [rank 3, attempt 1, stderr] a warning

Times are the container runtime's. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from windlass.wire.log_lines import FULL, REPLACED, read_record, render_prefix

_LINE = re.compile(rb"\[rank ([0-9]{1,6})(?:, attempt ([0-9]{1,6}))?(, stderr)?\] ?(.*)", re.DOTALL)


def render_pod_lines(records: bytes, *, rank: int, attempt: int) -> bytes:
    """Records of a rank's log file as lines for the pod's log; drawings of progress bars are left out."""
    who = f"[rank {rank}, attempt {attempt}" if attempt else f"[rank {rank}"
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
        at_s = _read_time(when)
        if line_match and at_s is not None:
            prefix = render_prefix(at_s, "stderr" if line_match[3] else "stdout", FULL)
            yield int(line_match[1]), int(line_match[2] or 0), prefix + line_match[4] + b"\n"


def _read_time(when: bytes) -> float | None:
    # nanoseconds are more than Python reads
    text = re.sub(rb"(\.\d{6})\d+", rb"\1", when)
    record = read_record(text + b" stdout F ")
    return record.at_s if record else None
