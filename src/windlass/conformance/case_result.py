"""How one case of the contract suite ended. Knows nothing of pytest."""

from __future__ import annotations

from dataclasses import dataclass

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """One row of the table: `reason` is one line, `detail` the whole story of a failure."""

    case: str
    result: str
    seconds: float
    reason: str = ""
    detail: str = ""
