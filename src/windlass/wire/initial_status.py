"""A job's first status, from its plan alone, and any status as the bytes of its file.

Pure. Engines write it before the lead is there; the lead goes on from it.
"""

from __future__ import annotations

import json

from windlass import records
from windlass.plan.plan import Plan
from windlass.wire.states import MomentName
from windlass.wire.status import JobStatus, Moment, NodeStatus, RankStatus


def make_first_status(plan: Plan) -> JobStatus:
    """A job's status before anything has been seen of it."""
    return JobStatus(
        job_id=plan.job_id,
        name=plan.name,
        engine=plan.engine,
        work=plan.work.label,
        restarts=plan.restarts,
        num_nodes=len(plan.nodes),
        num_ranks=plan.num_ranks,
        detach=plan.detach,
        created_at_s=plan.created_at_s,
        nodes=tuple(NodeStatus(index=node.index, name=node.name) for node in plan.nodes),
        ranks=make_ranks(plan),
        timeline=(Moment(name=MomentName.SUBMITTED, at_s=plan.created_at_s),),
    )


def render_status(status: JobStatus) -> bytes:
    """What stands in the status file."""
    return json.dumps(records.to_json(status), separators=(",", ":")).encode()


def make_ranks(plan: Plan) -> tuple[RankStatus, ...]:
    """Every rank, none of them started."""
    return tuple(
        RankStatus(rank=rank, node=node.index) for node in plan.nodes for rank in node.ranks
    )
