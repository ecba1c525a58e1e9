"""Status: phases, reasons and counts as programs read them."""

from __future__ import annotations

import json

from windlass import records
from windlass.wire.status import FailureKind, JobStatus, Phase, RankStatus, Verdict


def test_the_words_are_frozen():
    """Scripts match on these."""
    assert [phase.value for phase in Phase] == [
        "pending", "starting", "running", "stopping", "succeeded", "failed", "cancelled", "ended",
    ]  # fmt: skip
    assert [kind.value for kind in FailureKind] == [
        "user error", "killed by a signal", "out of memory", "lost node", "timeout",
        "cancelled", "start failed", "step failed", "outcome not known",
    ]  # fmt: skip


def test_which_phases_are_final():
    assert [phase.value for phase in Phase if phase.is_final] == [
        "succeeded",
        "failed",
        "cancelled",
        "ended",
    ]


def test_counting_ranks():
    states = ["running", "returned", "running", "pending"]
    ranks = tuple(RankStatus(rank=i, node=0, state=state) for i, state in enumerate(states))
    status = JobStatus(job_id="j", name="n", engine="local", work="w", ranks=ranks)
    assert [status.count(s) for s in ("running", "returned", "lost")] == [2, 1, 0]


def test_a_status_of_a_newer_writer_is_read():
    status = JobStatus(job_id="j", name="n", engine="local", work="w")
    data = json.loads(json.dumps(records.to_json(status)))
    data["mood"] = "fine"
    data["progress"]["speed"] = 3
    assert records.read(JobStatus, data) == status


def test_where():
    verdict = Verdict(kind=FailureKind.USER_ERROR, message="m", file="/a.py", line=3)
    assert verdict.where == "/a.py:3"
    assert Verdict(kind=FailureKind.TIMEOUT, message="m").where == ""
