"""Status writer: changes reach the disk soon, and the progress is that of the slowest rank."""

from __future__ import annotations

import asyncio
import json

import pytest

from windlass import records
from windlass.agent.lead.status_writer import StatusWriter
from windlass.plan.plan import Facts, make_plan
from windlass.spec.job_spec import JobSpec
from windlass.spec.work import Script
from windlass.wire.job_folder import JobFolder
from windlass.wire.messages.ranks import RankReport
from windlass.wire.status import FailureKind, JobStatus, Phase, Progress, Verdict

PLAN = make_plan(
    JobSpec(work=Script(path="a.py"), nodes=2, procs=2, restarts=1),
    job_id="job-1",
    now_s=5.0,
    facts=Facts(environ={}),
)


def write_status(tmp_path, write):
    """Call `write` with a status writer inside an event loop, and return the writer."""

    async def run():
        status_writer = StatusWriter(PLAN, JobFolder(tmp_path))
        result = write(status_writer)
        if asyncio.iscoroutine(result):
            await result
        return status_writer

    return asyncio.run(run())


def read_status_file(tmp_path):
    return records.read(JobStatus, json.loads(JobFolder(tmp_path).status.read_bytes()))


def report(rank, step=None, total=None, at_s=100.0, **metrics):
    about = {"rank": rank, "attempt": 0, "step": step, "total": total, "at_s": at_s}
    return RankReport(**about, metrics=metrics)


def progress_after(tmp_path, *reports):
    return write_status(tmp_path, lambda b: [b.report(r) for r in reports] and None).status.progress


def test_phase_is_on_disk_immediately_with_its_reason(tmp_path):
    write_status(
        tmp_path,
        lambda status_writer: status_writer.set_phase(Phase.RUNNING, "RanksRunning", "all of them"),
    )
    status = read_status_file(tmp_path)
    assert (status.phase, status.ended_at_s) == (Phase.RUNNING, None)
    [condition] = status.conditions
    assert (condition.type, condition.reason, condition.message) == (
        "running",
        "RanksRunning",
        "all of them",
    )


def test_a_final_phase_has_an_end(tmp_path):
    write_status(
        tmp_path, lambda status_writer: status_writer.set_phase(Phase.FAILED, "RankFailed", "one")
    )
    status = read_status_file(tmp_path)
    assert status.ended_at_s == pytest.approx(status.conditions[-1].since_s, abs=5)


def test_small_changes_are_on_disk_soon(tmp_path):
    async def write(status_writer):
        status_writer.set_node(1, state="joined", pid=7)
        status_writer.set_rank(2, state="running", pid=8)
        assert not JobFolder(tmp_path).status.exists()
        while not JobFolder(tmp_path).status.exists():
            await asyncio.sleep(0.01)

    write_status(tmp_path, write)
    status = read_status_file(tmp_path)
    assert (status.nodes[1].state, status.nodes[1].pid) == ("joined", 7)
    assert (status.ranks[2].state, status.ranks[2].pid) == ("running", 8)
    assert status.ranks[1].state == "pending"


def test_repeated_conditions_are_added_once(tmp_path):
    def write(status_writer):
        for message in ("a", "b", "a"):
            status_writer.add_condition("warning", "LogTruncated", message)

    status_writer = write_status(tmp_path, write)
    assert [condition.message for condition in status_writer.status.conditions] == ["a", "b"]


def test_moments_are_marked_once_and_in_order(tmp_path):
    def write(status_writer):
        status_writer.mark("second", 8.0)
        status_writer.mark("first", 7.0)
        status_writer.mark("second", 6.0)

    status_writer = write_status(tmp_path, write)
    assert [(m.name, m.at_s) for m in status_writer.status.timeline] == [
        ("submitted", 5.0),
        ("first", 7.0),
        ("second", 8.0),
    ]


def test_verdicts_are_final_or_history(tmp_path):
    first = Verdict(kind=FailureKind.USER_ERROR, message="first")
    last = Verdict(kind=FailureKind.KILLED, message="last")

    def write(status_writer):
        status_writer.set_verdict(first, final=False)
        status_writer.set_verdict(last, final=True)

    write_status(tmp_path, write)
    status = read_status_file(tmp_path)
    assert (status.history, status.verdict) == ((first,), last)


def test_progress_is_the_slowest_rank_s(tmp_path):
    progress = progress_after(
        tmp_path, report(0, 8, 10, loss=0.5), report(1, 3, 10, loss=9.0), report(2, 5, 12)
    )
    assert (progress.step, progress.max_step, progress.total) == (3, 8, 12)
    # the metrics are of the same rank
    assert (progress.rank, progress.metrics) == (1, {"loss": 9.0})


def test_metrics_of_earlier_steps_have_their_step(tmp_path):
    progress = progress_after(tmp_path, report(0, 1, loss=0.5, lr=1), report(0, 2, loss=0.4))
    assert progress.metrics == {"loss": 0.4, "lr": 1}
    assert (progress.step, progress.metric_steps) == (2, {"lr": 1})


def test_spread_needs_more_than_the_delay_between_reports(tmp_path):
    near = progress_after(tmp_path, report(0, 20), report(1, 21))
    assert not near.is_spread
    assert progress_after(tmp_path, report(0, 20), report(1, 22)).is_spread
    fast = [report(0, 0, at_s=1.0), report(0, 100, at_s=2.0), report(1, 120, at_s=2.0)]
    assert not progress_after(tmp_path, *fast).is_spread  # 100 steps a second
    assert progress_after(tmp_path, *fast, report(1, 140, at_s=2.0)).is_spread


def test_last_step_has_its_time(tmp_path):
    reports = [report(0, 3, at_s=5.0), report(0, 3, at_s=7.0), report(1, 9, at_s=8.0)]
    progress = progress_after(tmp_path, *reports)
    assert (progress.at_s, progress.step_at_s) == (8.0, 5.0)


def test_progress_ends_with_its_attempt(tmp_path):
    def write(status_writer):
        status_writer.report(report(0, 3, 10, loss=0.5))
        failed = Verdict(kind=FailureKind.USER_ERROR, message="boom")
        status_writer.set_verdict(failed, final=False)

    assert write_status(tmp_path, write).status.progress == Progress()


def test_nan_metric_is_one_warning(tmp_path):
    nan = float("nan")

    def write(status_writer):
        status_writer.report(report(1, 57, loss=nan, lr=0.1))
        status_writer.report(report(0, 58, loss=nan))

    conditions = write_status(tmp_path, write).status.conditions
    warnings = [c.message for c in conditions if c.type == "warning"]
    assert warnings == ["rank 1 reported loss nan at step 57"]


def test_speed_and_time_left(tmp_path):
    one = report(0, 10, 100, at_s=50.0)
    assert progress_after(tmp_path, one).eta_s is None  # no earlier report to compare with
    two = progress_after(tmp_path, one, report(0, 30, 100, at_s=60.0))
    assert two.steps_per_s == pytest.approx(2.0)
    assert two.eta_s == pytest.approx(35.0)


def test_no_time_left_without_a_total_or_with_too_few_steps(tmp_path):
    no_total = progress_after(tmp_path, report(0, 1, at_s=1.0), report(0, 3, at_s=2.0))
    assert (no_total.eta_s, no_total.steps_per_s) == (None, pytest.approx(2.0))
    back = progress_after(tmp_path, report(0, 5, 9, at_s=1.0), report(0, 4, 9, at_s=2.0))
    assert (back.eta_s, back.steps_per_s) == (None, None)
    late = progress_after(tmp_path, report(0, 5, 9, at_s=2.0), report(0, 6, 9, at_s=1.0))
    assert late.eta_s is None
    over = progress_after(tmp_path, report(0, 5, 9, at_s=1.0), report(0, 12, 9, at_s=2.0))
    assert over.eta_s == 0


def test_metrics_alone_are_progress_without_a_step(tmp_path):
    progress = progress_after(tmp_path, report(1, loss=2.0))
    assert (progress.step, progress.metrics) == (None, {"loss": 2.0})


@pytest.mark.parametrize("rank", [-1, 4, 99])
def test_reports_of_unknown_ranks_are_ignored(tmp_path, rank):
    progress = progress_after(tmp_path, report(rank, 1, 5, loss=7.0), report(0, 3, 5, loss=0.1))
    assert (progress.step, progress.metrics) == (3, {"loss": 0.1})


def test_first_step_is_in_the_timeline(tmp_path):
    status_writer = write_status(tmp_path, lambda b: b.report(report(2, 1, at_s=9.0)))
    assert [m.at_s for m in status_writer.status.timeline if m.name == "first step"] == [9.0]
    assert [rank.step for rank in status_writer.status.ranks] == [None, None, 1, None]


def test_new_attempt_resets_ranks_and_progress(tmp_path):
    def write(status_writer):
        status_writer.set_rank(0, state="running", pid=3)
        status_writer.report(report(0, 80, 100, at_s=1.0, loss=0.1))
        status_writer.start_attempt(1, status_writer._plan)

    status_writer = write_status(tmp_path, write)
    assert status_writer.status.attempt == 1
    assert {rank.state for rank in status_writer.status.ranks} == {"pending"}
    assert status_writer.status.progress == Progress()


def test_unwritable_disk_does_not_raise(tmp_path):
    def write(status_writer):
        status_writer.set_phase(Phase.RUNNING, "RanksRunning", "one")
        (tmp_path / "here").mkdir()
        status_writer.set_phase(Phase.SUCCEEDED, "AllRanksReturned", "two")

    status_writer = write_status(tmp_path / "here", write)
    assert status_writer.status.phase is Phase.SUCCEEDED
    assert read_status_file(tmp_path / "here").phase is Phase.SUCCEEDED


def test_space_for_the_final_status_is_reserved(tmp_path):
    reserve = JobFolder(tmp_path).reserve

    def write(status_writer):
        size = reserve.stat().st_size
        status_writer.set_phase(Phase.RUNNING, "RanksRunning", "one")
        assert reserve.stat().st_size == size > 2 * JobFolder(tmp_path).status.stat().st_size
        # on a full disk there is no space for a second file, so the status goes into the reserved one
        status_writer.set_phase(Phase.STOPPING, "RankFailed", "two")
        status_writer._write_in_reserve(b"the last word")

    write_status(tmp_path, write)
    assert JobFolder(tmp_path).status.read_bytes() == b"the last word"
    write_status(
        tmp_path, lambda status_writer: status_writer.set_phase(Phase.FAILED, "RankFailed", "three")
    )
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]
    assert read_status_file(tmp_path).phase is Phase.FAILED
