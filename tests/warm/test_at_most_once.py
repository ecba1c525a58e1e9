"""At-most-once calls: a call that has run is never resent, no matter how long its client was offline."""

from __future__ import annotations

import pytest
import warm_tasks as tasks

import windlass as kt
from windlass.agent.lead.calls import call_queue
from windlass.client.compute.calls.client_call import ClientCall

WAIT_S = 120.0


def make_calling(remote, *args, detach=False):
    """Return an unsent call, so that a test can break its connection between the steps."""
    calling, _ = remote._make("", args, {}, remote._options, detach=detach)
    return calling


def break_connection(calling: ClientCall):
    assert calling._connection is not None
    calling._connection.close()  # received data that was not read yet is lost


def make_others(compute):
    """Make one call more than a compute keeps."""
    echo = kt.fn(tasks.echo, keep="process").to(compute)
    for number in range(call_queue.KEPT_CALLS + 1):
        assert echo(number) == ((number,), {})


@pytest.mark.parametrize("keep", ["", "process"])
def test_disconnected_call_runs_once_despite_201_others(warm, shared, keep):
    calling = make_calling(kt.fn(tasks.append, keep=keep).to(warm), f"{shared.path}/ran", "once")
    calling.send()
    shared.wait_for("ran")
    break_connection(calling)
    make_others(warm)
    with pytest.raises(kt.JobNotFound, match="is no longer known") as caught:
        calling.follow()
    assert not caught.value.retryable
    assert "not repeated" in caught.value.hint
    make_others(warm)
    assert shared.read("ran") == "once\n"


def test_call_that_never_arrived_is_sent_again(warm, shared):
    """This holds even after 201 others, because an unknown call differs from a forgotten one."""
    calling = make_calling(kt.fn(tasks.append).to(warm), f"{shared.path}/ran", "once")
    calling._take_connection(None)
    break_connection(calling)
    make_others(warm)
    assert calling.follow().state == "returned"
    assert shared.read("ran") == "once\n"


def test_disconnected_call_is_found_while_it_is_kept(warm, shared):
    remote = kt.fn(tasks.block).to(warm)
    calling = make_calling(remote, f"{shared.path}/started", f"{shared.path}/go")
    calling.send()
    shared.wait_for("started")
    break_connection(calling)
    shared.touch("go")
    assert calling.follow().state == "returned"


def test_detached_call_is_accepted_on_the_next_connection(warm, shared):
    """The acceptance arrives while the call still runs."""
    remote = kt.fn(tasks.block).to(warm)
    calling = make_calling(remote, f"{shared.path}/started", f"{shared.path}/go", detach=True)
    calling.send()
    shared.wait_for("started")
    break_connection(calling)
    calling.wait_for_acceptance()
    shared.touch("go")
    assert kt.attach(calling.id).wait(WAIT_S).phase.value == "succeeded"


def test_forgotten_job_raises_job_not_found(warm, shared):
    job = kt.fn(tasks.append).to(warm).submit(f"{shared.path}/ran", "once")
    job.wait(WAIT_S)
    make_others(warm)
    for handle in (kt.attach(job.id), kt.attach(str(job.ref))):
        for ask in (handle.result, handle.results, handle.status, handle.exception, handle.verdict):
            with pytest.raises(kt.JobNotFound, match="is no longer known") as caught:
                ask()
            assert not caught.value.retryable
    assert job.result() is None  # this handle has read the result before


def test_unknown_job_has_an_error_of_its_own(warm):
    job = kt.fn(tasks.echo).to(warm).submit(1)
    other = kt.attach(job.id[:-3] + "xyz")
    with pytest.raises(kt.JobNotFound, match="never received the call"):
        other.status()
    assert job.result() == ((1,), {})
