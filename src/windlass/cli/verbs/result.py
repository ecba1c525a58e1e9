"""`windlass result`: the value, exception or missing result of each rank of an ended job.

`run` and `call` print results with the same functions. They read the headers of results only, so no user
object is unpickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from windlass.cli.flags import job_argument, json_option, load_settings
from windlass.cli.show import print_json
from windlass.cli.verb_table import Verb
from windlass.client.jobs.find_jobs import find_job
from windlass.client.jobs.job import make_missing_error
from windlass.client.terminal import clean
from windlass.errors import SpecError, WaitTimeout
from windlass.observe import explain
from windlass.observe.explain import exit_code_of
from windlass.wire.results import MISSING, ResultHeader
from windlass.wire.states import RankState
from windlass.wire.status import JobStatus


def make_record(
    ref: str,
    status: JobStatus,
    outcomes: Sequence[ResultHeader | None],
    *,
    only: int | None = None,
) -> dict[str, Any]:
    """Return the record of how a job ended, as every verb prints it. `only` keeps the row of one rank."""
    rows = make_result_rows(status, outcomes)
    return {
        "job_id": status.job_id,
        "ref": ref,
        "phase": status.phase,
        "attempt": status.attempt,
        "verdict": status.verdict,
        "results": rows if only is None else rows[only : only + 1],
        "timeline": explain.make_timeline_rows(status),
    }


def make_result_rows(
    status: JobStatus, outcomes: Sequence[ResultHeader | None]
) -> list[dict[str, Any]]:
    """Return one row per rank: its state, and its value (or its repr) or its error, if it has one."""
    states = {rank.rank: rank.state for rank in status.ranks}
    return [
        _make_row(rank, states.get(rank, RankState.PENDING), header)
        for rank, header in enumerate(outcomes)
    ]


def _make_row(rank: int, state: str, header: ResultHeader | None) -> dict[str, Any]:
    if header is None:
        return {"rank": rank, "state": state, "error": None}
    row: dict[str, Any] = {"rank": rank, "state": header.state}
    if header.state == RankState.RETURNED:
        row |= {"value": header.json} if header.is_json else {"repr": header.repr}
    return row | {"error": header.error}


def render_lines(
    status: JobStatus, outcomes: Sequence[ResultHeader | None], *, only: int | None = None
) -> list[str]:
    """Return the lines for each rank. The value of a single rank is printed without a prefix."""
    states = {rank.rank: rank.state for rank in status.ranks}
    if only is not None or len(outcomes) == 1:
        rank = only or 0
        return [_render_one(outcomes[rank], states.get(rank, RankState.PENDING), in_full=True)]
    return [
        f"rank {rank}: {_render_one(header, states.get(rank, 'pending'), in_full=False)}"
        for rank, header in enumerate(outcomes)
    ]


def check_missing(outcomes: Sequence[ResultHeader | None]) -> None:
    """Raise the error for the first result that a rank wrote and that is missing here."""
    for header in outcomes:
        if header is not None and header.state == MISSING:
            raise make_missing_error(header)


def _render_one(header: ResultHeader | None, state: str, *, in_full: bool) -> str:
    if header is None:
        return (
            "no result (a command has none)"
            if state == RankState.RETURNED
            else f"no result ({state})"
        )
    if header.state == RankState.RETURNED:
        return clean(header.repr, color=False)
    if header.state == MISSING:
        return clean(make_missing_error(header).message, color=False)
    if header.error is None:
        return f"{header.state}, exit code {header.exit_code}"
    if in_full and header.error.traceback:
        return clean(header.error.traceback.rstrip(), color=False)
    where = f" ({header.error.file}:{header.error.line})" if header.error.file else ""
    first = header.error.text.partition("\n")[0]
    return clean(f"{header.state} {first}{where}", color=False)


@click.command(cls=Verb)
@job_argument
@click.option("--rank", type=int, metavar="N", help="Print one rank only, with its full traceback")
@json_option
def result(job_text: str, rank: int | None, as_json: bool) -> int:
    """Print what each rank of JOB returned or raised.

    Values are printed as their repr, and are never unpickled. With --json they are printed as JSON where
    possible, in the form of `windlass run --json`.

    Exits 0 if the job succeeded and 1 if it failed. Exits 3 if it could not start or its end is unknown.
    """
    job = find_job(job_text, load_settings())
    status = job.status()
    if not status.phase.is_final:
        raise WaitTimeout(
            f"{job.id} is still {status.phase.value}",
            hint=f"run `windlass wait {job.id} && windlass result {job.id}`",
        )
    if rank is not None and not 0 <= rank < status.num_ranks:
        raise SpecError(
            f"rank {rank} does not exist", hint=f"{job.id} has ranks 0 to {status.num_ranks - 1}"
        )
    outcomes = job.outcomes()
    if as_json:
        print_json(make_record(str(job.ref), status, outcomes, only=rank))
    else:
        for line in render_lines(status, outcomes, only=rank):
            click.echo(line)
    check_missing(outcomes if rank is None else outcomes[rank : rank + 1])
    return exit_code_of(status)
