"""The verdict when no attempt can start: which nodes are missing, and what became of them.

Pure but for the clock. Whether it has come to that is the lead's decision.
"""

from __future__ import annotations

import time

from windlass.agent.lead.failure import make_job_verdict
from windlass.agent.lead.roster import Roster
from windlass.plan.plan import Plan
from windlass.wire.status import FailureKind, Verdict


def judge_missing(
    plan: Plan, roster: Roster, *, obstacle: str, is_hopeless: bool, has_begun: bool
) -> Verdict:
    """Why the nodes that are here are not enough; `obstacle` is what else keeps them from starting."""
    timeout = f"within {plan.join_timeout_s:g} s"
    missing = roster.missing()
    if is_hopeless:
        missing = sorted(roster.lost)
        kind, what = FailureKind.LOST_NODE, "was lost before the job could start"
    elif obstacle:
        why = f"no attempt could start {timeout}: {obstacle}"
        return make_job_verdict(plan, FailureKind.LOST_NODE, why, at_s=time.time())
    elif has_begun:
        kind, what = FailureKind.LOST_NODE, f"was lost and did not come back {timeout}"
    elif missing:
        kind, what = FailureKind.START_FAILED, f"did not join {timeout}"
    else:
        missing = sorted(set(roster.here()) - set(roster.prepared()))
        kind, what = FailureKind.START_FAILED, f"did not get the code {timeout}"
    who = ", ".join(plan.nodes[index].name for index in missing)
    return make_job_verdict(plan, kind, f"{who} {what}", at_s=time.time(), node=missing[0])
