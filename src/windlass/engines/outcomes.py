"""What the ranks of an ended job left, as its folder here has it: a result that should be there is named.

Only functions return something. Where that has not come here, whoever asks is told of which rank it was and
why; None would be taken for what it returned.
"""

from __future__ import annotations

import contextlib

from windlass import names
from windlass.plan.plan import Plan
from windlass.spec.work import Function
from windlass.wire.job_folder import JobFolder
from windlass.wire.last_word import read_omitted
from windlass.wire.results import ResultHeader, make_missing, read_results
from windlass.wire.status import JobStatus, Phase

Result = tuple[ResultHeader, bytes]
_KEEP = "stay attached, or have the code write it to a volume (--volume)"


def read_outcomes(
    folder: JobFolder, plan: Plan, status: JobStatus, *, with_values: bool
) -> list[Result | None]:
    """What each rank left in the last attempt, in rank order."""
    results = read_results(
        folder, attempt=status.attempt, num_ranks=status.num_ranks, with_values=with_values
    )
    if status.phase is not Phase.SUCCEEDED or not isinstance(plan.work, Function):
        return results
    return [
        make_missing(rank, status.attempt, _explain(folder, status, rank)) if left is None else left
        for rank, left in enumerate(results)
    ]


def _explain(folder: JobFolder, status: JobStatus, rank: int) -> str:
    path = f"{folder.attempt(status.attempt).name}/rank-{rank}.result"
    size = _read_omitted(folder).get(path)
    if size is not None:
        why = f"its {size} bytes were too large to outlive its pod"
        return f"the result of rank {rank} is missing: {why}\n  hint: {_KEEP}"
    told = [c.message for c in status.conditions if c.reason == names.REASON_RESULT_MISSING]
    why = "; ".join(told) or "its file is not here any more"
    return f"the result of rank {rank} is missing: {why}\n  hint: windlass logs {status.job_id}"


def _read_omitted(folder: JobFolder) -> dict[str, int]:
    with contextlib.suppress(FileNotFoundError):
        return read_omitted((folder.path / names.OMITTED_FILE).read_bytes())
    return {}
