"""At most once: a call that ran is never said again, however long its client was away."""

from __future__ import annotations

import pytest
import warm_tasks as tasks

import windlass as kt
from windlass.agent.lead.calls import call_queue
from windlass.client.compute.calls.client_call import ClientCall

WAIT_S = 120.0


def make_calling(remote, *args, detach=False):
    """One call in its parts, so that its line can break between them."""
    calling, _ = remote._make("", args, {}, remote._options, detach=detach)
    return calling


def break_line(calling: ClientCall):
    assert calling._connection is not None
    calling._connection.close()  # what has come over it and was not read is lost


def make_others(compute):
    """As many calls as a compute keeps."""
    echo = kt.fn(tasks.echo, keep="process").to(compute)
    for number in range(call_queue.KEPT_CALLS + 1):
        assert echo(number) == ((number,), {})


@pytest.mark.parametrize("keep", ["", "process"])
def test_a_call_whose_line_was_broken_for_201_others_runs_once(warm, shared, keep):
    calling = make_calling(kt.fn(tasks.append, keep=keep).to(warm), f"{shared.path}/ran", "once")
    calling.send()
    shared.wait_for("ran")
    break_line(calling)
    make_others(warm)
    with pytest.raises(kt.JobNotFound, match="is no longer known") as caught:
        calling.follow()
    assert not caught.value.retryable
    assert "not repeated" in caught.value.hint
    make_others(warm)
    assert shared.read("ran") == "once\n"


def test_a_call_that_was_never_heard_of_is_said_again(warm, shared):
    """Also after 201 others: what is not known was not forgotten."""
    calling = make_calling(kt.fn(tasks.append).to(warm), f"{shared.path}/ran", "once")
    calling._take_connection(None)
    break_line(calling)
    make_others(warm)
    assert calling.follow().state == "returned"
    assert shared.read("ran") == "once\n"


def test_a_call_of_which_the_line_broke_is_found_again_while_it_is_kept(warm, shared):
    remote = kt.fn(tasks.block).to(warm)
    calling = make_calling(remote, f"{shared.path}/started", f"{shared.path}/go")
    calling.send()
    shared.wait_for("started")
    break_line(calling)
    shared.touch("go")
    assert calling.follow().state == "returned"


def test_a_detached_call_is_accepted_over_the_next_line(warm, shared):
    """Not only once it has ended."""
    remote = kt.fn(tasks.block).to(warm)
    calling = make_calling(remote, f"{shared.path}/started", f"{shared.path}/go", detach=True)
    calling.send()
    shared.wait_for("started")
    break_line(calling)
    calling.wait_for_acceptance()
    shared.touch("go")
    assert kt.attach(calling.id).wait(WAIT_S).phase.value == "succeeded"


def test_a_job_that_made_room_for_others_says_so(warm, shared):
    job = kt.fn(tasks.append).to(warm).submit(f"{shared.path}/ran", "once")
    job.wait(WAIT_S)
    make_others(warm)
    for handle in (kt.attach(job.id), kt.attach(str(job.ref))):
        for ask in (handle.result, handle.results, handle.status, handle.exception, handle.verdict):
            with pytest.raises(kt.JobNotFound, match="is no longer known") as caught:
                ask()
            assert not caught.value.retryable
    assert job.result() is None  # which this one has read before


def test_a_job_that_never_was_is_told_apart(warm):
    job = kt.fn(tasks.echo).to(warm).submit(1)
    other = kt.attach(job.id[:-3] + "xyz")
    with pytest.raises(kt.JobNotFound, match="never received the call"):
        other.status()
    assert job.result() == ((1,), {})
