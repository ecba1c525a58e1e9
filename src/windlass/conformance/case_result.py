"""Result of one case of the contract suite. Does not import pytest."""

from __future__ import annotations

from dataclasses import dataclass

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """One row of the table, with a one-line `reason` and the full `detail` of a failure."""

    case: str
    result: str
    seconds: float
    reason: str = ""
    detail: str = ""
