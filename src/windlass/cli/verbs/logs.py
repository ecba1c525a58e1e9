"""`windlass logs`: the output of the ranks, in full or filtered.

Everything that a rank wrote goes to stdout, including its stderr.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import datetime

import click

from windlass.cli.flags import job_argument, json_option, load_settings
from windlass.cli.show import print_json_line
from windlass.cli.verb_table import Verb
from windlass.client.jobs.find_jobs import find_job
from windlass.client.jobs.job import Job
from windlass.client.terminal import clean, print_notice, render_line, wants_color
from windlass.errors import SpecError
from windlass.settings import read_duration
from windlass.wire.log_lines import LogLine
from windlass.wire.status import JobStatus, Phase

_FIRST_UNIX_S = 1e9  # a number this large is a point in time, not a duration


@click.command(cls=Verb)
@job_argument
@click.option("--follow", "-f", is_flag=True, help="Keep following until the job ends")
@click.option(
    "--rank", type=int, metavar="N", help="Print one rank only, without the prefix of each line"
)
@click.option("--node", type=int, metavar="N", help="Print the ranks of one node only")
@click.option(
    "--attempt", type=int, metavar="N", help="Print one attempt only (default: all attempts)"
)
@click.option(
    "--since",
    metavar="WHEN",
    help="Print lines since WHEN: 5m (ago), 2026-01-31T12:00 or a Unix timestamp",
)
@click.option("--grep", metavar="RE", help="Print lines that match a regular expression")
@json_option
def logs(
    job_text: str,
    follow: bool,
    rank: int | None,
    node: int | None,
    attempt: int | None,
    since: str | None,
    grep: str | None,
    as_json: bool,
) -> None:
    """Print the output of JOB's ranks in chronological order."""
    _check_grep(grep)
    since_s = None if since is None else read_since(since, now_s=time.time())
    job = find_job(job_text, load_settings())
    _check_bounds(job.status(), rank=rank, node=node, attempt=attempt)
    lines = job.logs(follow=follow, rank=rank, node=node, attempt=attempt, since=since_s, grep=grep)
    num_lines = _print_json(lines) if as_json else _print(lines, prefix=rank is None)
    if not num_lines:
        _print_no_output(
            job, filtered=any(x is not None for x in (rank, node, attempt, since, grep))
        )


def read_since(text: str, *, now_s: float) -> float:
    """Parse a `--since` value into a Unix time.

    The value is a duration before now (`5m`), a date and time (local by default) or a Unix timestamp.
    """
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if number >= _FIRST_UNIX_S:
        return number
    try:
        # fromisoformat accepts a Z only since Python 3.11
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        pass
    try:
        return now_s - read_duration(text)
    except SpecError as error:
        raise SpecError(
            f"--since must be a duration or a point in time, not {text!r:.60}",
            hint="use a value such as 90s, 5m, 2h or 2026-01-31T12:00",
        ) from error


def _check_grep(pattern: str | None) -> None:
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise SpecError(
            f"--grep {pattern!r:.60} is not a valid regular expression: {error}",
            hint="escape special characters with a backslash: \\[ \\( \\*",
        ) from error


def _check_bounds(status: JobStatus, **wanted: int | None) -> None:
    sizes = {"rank": status.num_ranks, "node": status.num_nodes, "attempt": status.attempt + 1}
    for what, number in wanted.items():
        if number is not None and not 0 <= number < sizes[what]:
            there = f"0 to {sizes[what] - 1}" if sizes[what] > 1 else "0 only"
            raise SpecError(
                f"{what} {number} does not exist", hint=f"{status.job_id} has {what} {there}"
            )


def _print_json(lines: Iterable[LogLine]) -> int:
    num_lines = 0
    for line in lines:
        print_json_line(line)
        num_lines += 1
    return num_lines


def _print(lines: Iterable[LogLine], *, prefix: bool) -> int:
    color = wants_color(sys.stdout)
    num_lines = 0
    for line in _settled(lines):
        text = render_line(line, color=color) if prefix else clean(line.text, color=color)
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
        num_lines += 1
    return num_lines


def _settled(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """Yield the lines, with only the last state of each progress bar, unless other output replaced it."""
    bars: dict[int, LogLine] = {}
    for line in lines:
        if line.replaced:
            bars[line.rank] = line
            continue
        bars.pop(line.rank, None)
        yield line
    yield from bars.values()


def _print_no_output(job: Job, *, filtered: bool) -> None:
    if filtered:
        print_notice(f"no output of {job.id} matches")
        return
    phase = job.status().phase
    if phase is Phase.ENDED:
        print_notice(
            f"the output of {job.id} can no longer be read; `windlass why {job.id}` explains it"
        )
    else:
        print_notice(
            f"{job.id} has written nothing{'' if phase.is_final else ' yet; -f waits for more'}"
        )
