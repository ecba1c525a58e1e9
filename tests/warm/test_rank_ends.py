"""Ranks of a compute exit like normal interpreters, whatever ends them, so buffered data is not lost."""

from __future__ import annotations

import pytest
import warm_tasks as tasks
from waits import wait_for

import windlass as kt

GRACE_S = 600  # longer than any test, so nothing may end only because of it


def wait_for_texts(shared):
    """Wait for both files. Exit handlers run before files are flushed, so the markers are not enough."""
    shared.wait_for("0.ended", "1.ended")
    wait_for(
        lambda: [shared.read(f"{rank}.txt") for rank in (0, 1)] == ["x", "x"],
        "the files are flushed",
        60,
    )


@pytest.mark.long
@pytest.mark.parametrize("how", ["teardown", "remove"])
def test_object_loses_no_data_when_its_compute_ends(make, shared, how):
    compute = make(grace_s=GRACE_S)
    writer = (
        kt.cls(tasks.Writer, init_args={"folder": shared.path})
        .to(compute)
        .distribute("spmd", workers=2)
    )
    writer.put("x")
    if how == "teardown":
        compute.teardown()
    else:
        writer.teardown()
    wait_for_texts(shared)


def test_function_loses_no_data_when_its_call_is_interrupted(make, shared):
    compute = make(grace_s=GRACE_S)
    remote = kt.fn(tasks.write_and_wait).to(compute).distribute("spmd", workers=2)
    job = remote.submit(shared.path)
    shared.wait_for("0.waits", "1.waits")
    job.cancel(interrupt=True)
    wait_for_texts(shared)
    # the next call does not wait for the grace period
    assert kt.fn(tasks.whoami).to(compute)()["rank"] == 0
