"""Ranks of a compute end as interpreters end, whatever ends them: nothing that they hold is lost."""

from __future__ import annotations

import pytest
import warm_tasks as tasks
from waits import wait_for

import windlass as kt

GRACE_S = 600  # what only ends with it takes too long for any test


def wait_for_texts(shared):
    """Exit handlers run before files are flushed: that they have run says nothing of what is written."""
    shared.wait_for("0.ended", "1.ended")
    wait_for(
        lambda: [shared.read(f"{rank}.txt") for rank in (0, 1)] == ["x", "x"], "all is there", 60
    )


@pytest.mark.long
@pytest.mark.parametrize("how", ["teardown", "remove"])
def test_an_object_loses_nothing_when_its_compute_goes(make, shared, how):
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


def test_a_function_loses_nothing_when_its_call_is_interrupted(make, shared):
    compute = make(grace_s=GRACE_S)
    remote = kt.fn(tasks.write_and_wait).to(compute).distribute("spmd", workers=2)
    job = remote.submit(shared.path)
    shared.wait_for("0.waits", "1.waits")
    job.cancel(interrupt=True)
    wait_for_texts(shared)
    assert kt.fn(tasks.whoami).to(compute)()["rank"] == 0  # the next call waits for no grace
