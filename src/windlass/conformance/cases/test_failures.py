"""Exceptions arrive with their own type, and every other failure as a correct verdict."""

from __future__ import annotations

import time
import traceback
from pathlib import Path

import pytest
import rank_work as work
from waits import wait_for

import windlass as wl


@pytest.mark.engine_matters
def test_an_exception_keeps_its_type_and_brings_its_traceback(on):
    with pytest.raises(ValueError, match="boom é") as caught:
        on.run(work.fail, ("raise", 2), nodes=2, procs=2)
    text = "".join(traceback.format_exception(caught.value))
    assert "rank 2:" in text
    assert "in _fail" in text
    assert "windlass/agent" not in str(caught.value.__cause__)


def test_an_exception_keeps_its_attributes(on):
    with pytest.raises(work.Plain) as caught:
        on.run(work.fail, ("plain",))
    assert (caught.value.code, caught.value.detail) == (7, "seven")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("lock", "RuntimeError: holds a lock"),
    ],
)
def test_an_exception_that_cannot_be_rebuilt_is_reported(on, how, message):
    with pytest.raises(wl.RemoteError, match=message):
        on.run(work.fail, (how,))


def test_an_exception_is_rebuilt_without_its_constructor(on):
    with pytest.raises(work.Awkward, match="1 and 2"):
        on.run(work.fail, ("awkward",))


def test_a_class_made_in_the_rank(on):
    with pytest.raises(Exception, match="made here") as caught:
        on.run(work.fail, ("local class",))
    assert type(caught.value).__name__ == "Local"


def test_chained_exceptions_are_reported_completely(on):
    with pytest.raises(RuntimeError, match="outer") as caught:
        on.run(work.fail, ("chained",))
    assert "KeyError: 'inner'" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("raise", "user error", "rank 1 on {job}-node-0 raised ValueError: boom é at"),
        ("memory", "out of memory", "raised MemoryError: too much"),
        ("exit 3", "user error", "exited with code 3 at"),
        ("exit text", "user error", "exited with code 1: bad config at"),
        ("_exit 0", "user error", "exited with code 0 before its work returned"),
        ("_exit 5", "user error", "exited with code 5"),
        ("interrupt", "user error", "raised KeyboardInterrupt"),
        ("SIGKILL", "killed by a signal", "was killed by SIGKILL"),
        ("SIGSEGV", "killed by a signal", "was killed by SIGSEGV"),
        ("SIGTERM", "killed by a signal", "was killed by SIGTERM"),
    ],
    ids=[
        "raise",
        "memory",
        "exit 3",
        "exit text",
        "_exit 0",
        "_exit 5",
        "interrupt",
        "SIGKILL",
        "SIGSEGV",
        "SIGTERM",
    ],
)
def test_verdict(on, how, kind, message):
    before_s = time.time()
    job = on.fail(work.fail, (how, 1), nodes=2, procs=2)
    verdict = job.verdict()
    assert verdict.kind.value == kind
    assert message.format(job=job.id) in verdict.message
    assert (verdict.rank, verdict.node, verdict.attempt) == (1, 0, 0)
    assert verdict.node_name == f"{job.id}-node-0"
    assert verdict.others == {"stopped": 3}
    assert before_s <= verdict.at_s <= time.time()
    assert verdict.next == f"windlass logs {job.id} --rank 1"
    assert job.status().ended_at_s is not None
    if how == "raise":
        assert verdict.where.endswith(f"rank_work.py:{_line_of('boom')}")
        assert verdict.source == 'raise ValueError("boom é")'


def _line_of(text: str) -> int:
    lines = Path(work.__file__).read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if text in line)


def test_a_missing_module_says_how_to_get_it(on):
    def needs():
        import no_such_module_here  # noqa: F401

    job = on.fail(needs)
    assert job.verdict().next.endswith("-m pip install no_such_module_here")
    assert isinstance(job.exception(), ModuleNotFoundError)


def test_the_verdict_does_not_wait_for_stubborn_ranks(on, shared):
    flag = f"{shared.path}/flag"

    def work_of_two():
        if work.rank() == 0:
            work.stubborn(flag)
        work.wait_for_file(flag)
        raise LookupError(time.time())

    job = on.submit(work_of_two, procs=2, grace_s=30)
    wait_for(lambda: job.verdict() is not None, "a verdict")
    seen_s = time.time()
    verdict = job.verdict()
    assert job.status().phase.value == "stopping"
    assert verdict.rank == 1
    assert (
        seen_s - verdict.at_s < 25
    )  # less than the grace period (benchmarks measure the target of 1 s)
    job.cancel(now=True)
    assert job.wait(60).verdict.rank == 1


def test_the_first_failure_is_blamed_not_the_loudest(on, shared):
    flag = f"{shared.path}/flag"

    def fail_in_order():
        if work.rank() == 3:
            Path(flag).touch()
            raise ValueError("the cause")
        work.wait_for_file(flag)
        raise ConnectionResetError("Connection reset by peer")

    verdict = on.fail(fail_in_order, nodes=2, procs=2).verdict()
    assert verdict.rank == 3
    assert "the cause" in verdict.message


@pytest.mark.engine_matters
def test_a_failed_command(on):
    job = on.fail(["sh", "-c", "exit 7"])
    assert job.verdict().exit_code == 7
    assert "exited with code 7" in job.verdict().message
    job = on.fail(["sh", "-c", "kill -9 $$"])
    assert job.verdict().signal == "SIGKILL"


@pytest.mark.engine_matters
def test_results_of_a_failed_job_stay_readable(on, shared):
    flag = f"{shared.path}/flag"

    def some():
        if work.rank() == 1:
            work.wait_for_file(flag)
            raise ValueError("late")
        return 5

    job = on.submit(some, procs=2)
    wait_for(lambda: job.status().count("returned") == 1, "rank 0 has returned")
    shared.touch("flag")
    assert job.wait(60).phase.value == "failed"
    first, second = job.outcomes()
    assert (first.state, first.repr, first.json) == ("returned", "5", 5)
    assert (second.state, second.error.text) == ("raised", "ValueError: late")
    with pytest.raises(ValueError, match="late"):
        wl.attach(job.id).results()
