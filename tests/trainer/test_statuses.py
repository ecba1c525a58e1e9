"""Statuses in the terms of the SDKs."""

import pytest

from windlass.kube.diagnosis.blocker import CONDITION, NOT_ADMITTED, PULLING, SUSPENDED
from windlass.trainer.statuses import V1_WORDS, V2_WORDS, name_v1, name_v2
from windlass.wire.status import Condition, FailureKind, JobStatus, Phase, Verdict

LOST = Verdict(kind=FailureKind.LOST_NODE, message="node 1 was lost")


def make_status(phase: Phase, *, reason: str = "", restarted: bool = False) -> JobStatus:
    blockers = [Condition(type=CONDITION, reason=reason, message="", since_s=0.0)] if reason else []
    return JobStatus(
        job_id="x",
        name="x",
        engine="trainjob",
        work="f",
        phase=phase,
        conditions=tuple(blockers),
        history=(LOST,) if restarted else (),
    )


@pytest.mark.parametrize(
    ("status", "v1", "v2"),
    [
        (make_status(Phase.PENDING), "Created", "Created"),
        (make_status(Phase.STARTING), "Created", "Created"),
        (make_status(Phase.PENDING, reason=PULLING), "Created", "Created"),
        (make_status(Phase.PENDING, reason=NOT_ADMITTED), "Suspended", "Created"),
        (make_status(Phase.PENDING, reason=SUSPENDED), "Suspended", "Created"),
        (make_status(Phase.RUNNING), "Running", "Running"),
        (make_status(Phase.RUNNING, restarted=True), "Running", "Running"),
        (make_status(Phase.STARTING, restarted=True), "Restarting", "Running"),
        (make_status(Phase.STOPPING), "Running", "Running"),
        (make_status(Phase.SUCCEEDED), "Succeeded", "Complete"),
        (make_status(Phase.SUCCEEDED, reason=SUSPENDED), "Succeeded", "Complete"),
        (make_status(Phase.FAILED), "Failed", "Failed"),
        (make_status(Phase.CANCELLED), "Failed", "Failed"),
        (make_status(Phase.ENDED), "Unknown", "Unknown"),
    ],
)
def test_status_words(status, v1, v2):
    assert (name_v1(status), name_v2(status)) == (v1, v2)


def test_every_phase_has_a_status():
    for phase in Phase:
        assert name_v1(make_status(phase)) in V1_WORDS | {"Unknown"}
        assert name_v2(make_status(phase)) in V2_WORDS | {"Unknown"}
