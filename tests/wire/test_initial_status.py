"""Status of a job before its first observation."""

from __future__ import annotations

import json

from windlass import records
from windlass.plan.plan import Facts, make_plan
from windlass.spec.job_spec import JobSpec
from windlass.spec.work import Script
from windlass.wire.status import JobStatus, Phase, make_first_status, render_status

PLAN = make_plan(
    JobSpec(work=Script(path="a.py"), nodes=2, procs=2),
    job_id="job-1",
    now_s=5.0,
    facts=Facts(environ={}),
)


def test_the_first_status():
    status = make_first_status(PLAN)
    assert (status.phase, status.num_nodes, status.num_ranks) == (Phase.PENDING, 2, 4)
    assert [(rank.rank, rank.node) for rank in status.ranks] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert [node.name for node in status.nodes] == ["job-1-node-0", "job-1-node-1"]
    assert [(moment.name, moment.at_s) for moment in status.timeline] == [("submitted", 5.0)]
    assert records.read(JobStatus, json.loads(render_status(status))) == status
