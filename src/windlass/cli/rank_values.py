"""What each rank returned, raised or left undone: as rows for programs and as lines for people.

Reads the headers of results only, so nothing of the user's is ever unpickled. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from windlass.client.jobs.load_values import make_missing_error
from windlass.client.terminal import clean
from windlass.observe import timeline
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
    """How a job ended, the same for every verb that says it; with `only`, the row of one rank."""
    rows = make_rows(status, outcomes)
    return {
        "job_id": status.job_id,
        "ref": ref,
        "phase": status.phase,
        "attempt": status.attempt,
        "verdict": status.verdict,
        "results": rows if only is None else rows[only : only + 1],
        "timeline": timeline.make_rows(status),
    }


def make_rows(status: JobStatus, outcomes: Sequence[ResultHeader | None]) -> list[dict[str, Any]]:
    """One row per rank: its state, and a value (or its repr) or an error where there is one."""
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
    """One line or a few per rank; a single rank's value stands alone."""
    states = {rank.rank: rank.state for rank in status.ranks}
    if only is not None or len(outcomes) == 1:
        rank = only or 0
        return [_render_one(outcomes[rank], states.get(rank, RankState.PENDING), in_full=True)]
    return [
        f"rank {rank}: {_render_one(header, states.get(rank, 'pending'), in_full=False)}"
        for rank, header in enumerate(outcomes)
    ]


def check_missing(outcomes: Sequence[ResultHeader | None]) -> None:
    """Raise the error for the first result that a rank left and that is not here."""
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
        return clean(header.repr, colour=False)
    if header.state == MISSING:
        return clean(make_missing_error(header).message, colour=False)
    if header.error is None:
        return f"{header.state}, exit code {header.exit_code}"
    if in_full and header.error.traceback:
        return clean(header.error.traceback.rstrip(), colour=False)
    where = f" ({header.error.file}:{header.error.line})" if header.error.file else ""
    first = header.error.text.partition("\n")[0]
    return clean(f"{header.state} {first}{where}", colour=False)
