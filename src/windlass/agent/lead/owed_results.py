"""Results that an attempt owes: which ranks of which nodes have not left theirs with the lead.

Reads the lead's folder; changes nothing.
"""

from __future__ import annotations

from windlass.agent.lead.attempt import Attempt
from windlass.spec.work import Function
from windlass.wire.job_folder import JobFolder


def find_owing(attempt: Attempt, folder: JobFolder) -> dict[int, list[int]]:
    """Nodes of this attempt, and those of their ranks whose results are not here."""
    if not isinstance(attempt.world.work, Function) or attempt.number < 0:
        return {}
    missing = {
        node.index: [r for r in node.ranks if not folder.result(attempt.number, r).exists()]
        for node in attempt.world.nodes
    }
    return {index: ranks for index, ranks in missing.items() if ranks}


def render_missing(node: str, ranks: list[int], why: str) -> str:
    """What is missing, and why."""
    which = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
    return f"the result of {which} is missing: {node} {why} before it had sent it"
