"""Every call ends, even if its ranks were dead or dying when it was made."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
from pathlib import Path

import pytest
import warm_tasks as tasks
from waits import wait_for

import windlass as kt

LIMIT_S = 60  # a call that reaches this limit has hung
TIMES = 5


def make_counter(compute, workers=2):
    return kt.cls(tasks.Counter).to(compute).distribute("spmd", workers=workers)


def expect_end(call, rank):
    """Make a call that either runs on new ranks or names the killed rank.

    Any other error fails the test.
    """
    try:
        return call(timeout=LIMIT_S)
    except kt.RankFailed as error:
        message = error.message
    assert re.search(f"rank {rank} on .* was killed by SIGKILL", message)
    return None


@contextlib.contextmanager
def paused(agent):
    """Stop an agent. Messages that arrive meanwhile are all pending when it resumes."""
    os.kill(agent, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(agent, signal.SIGCONT)


def is_dead(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("rank", [1, 0])
def test_object_call_right_after_its_rank_was_killed(warm, rank):
    counter = make_counter(warm)
    kill = kt.fn(tasks.kill, ranks=[rank]).to(warm).distribute("spmd", workers=2)
    for _ in range(TIMES):
        assert counter.add() == [1, 1]
        kill(counter.whoami()[rank]["pid"])
        if expect_end(counter.add, rank) is not None:
            assert counter.add() == [2, 2]
            counter = make_counter(warm)


@pytest.mark.local_only
@pytest.mark.parametrize("rank", [1, 0])
def test_object_call_after_the_test_killed_its_rank(warm, rank):
    counter = make_counter(warm)
    for _ in range(TIMES):
        os.kill(counter.whoami()[rank]["pid"], signal.SIGKILL)
        expect_end(counter.add, rank)


@pytest.mark.local_only
@pytest.mark.parametrize("late", [1, 0])
def test_call_concurrent_with_the_end_of_a_rank(warm, late):
    """A paused agent (the lead or the rank's node) sees both the call and the rank's exit when it resumes."""
    counter = make_counter(warm)
    for _ in range(TIMES):
        ranks = counter.whoami()
        pid = ranks[1]["pid"]
        with paused(ranks[late]["agent"][1]):
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda pid=pid: is_dead(pid), "the rank is dead")
            if late == 1:  # the lead takes the call, and its node learns of it later
                job = counter.add.submit()
        if late == 1:
            error = job.exception(timeout_s=LIMIT_S)
            assert isinstance(error, kt.RankFailed)
            assert "rank 1 on" in str(error)
        else:
            expect_end(counter.add, 1)


@pytest.mark.local_only
@pytest.mark.parametrize("workers", [1, 2])
def test_object_without_living_ranks_is_recreated(warm, workers):
    """No rank has seen the call, so it runs on new ones."""
    counter = kt.cls(tasks.Counter, name="anew").to(warm).distribute("spmd", workers=workers)
    for _ in range(TIMES):
        assert counter.add(timeout=LIMIT_S)[0] == 1
        for each in counter.whoami():
            os.kill(each["pid"], signal.SIGKILL)
            wait_for(lambda pid=each["pid"]: is_dead(pid), "the rank is dead")


@pytest.mark.long
def test_call_whose_preforked_ranks_were_killed(make):
    """The preforked ranks die. The call names the killed rank or runs on new ones."""
    compute = make()
    kill = kt.fn(tasks.kill_waiting).to(compute).distribute("spmd", workers=2)
    last = 1
    for rank in (1, 0) * TIMES:
        found = expect_end(functools.partial(kill, rank), last)
        assert found is None or sum(found) >= 1  # may include ranks that are just exiting
        last = rank


@pytest.mark.long
@pytest.mark.local_only
def test_call_whose_only_preforked_rank_was_killed(make):
    compute = make()
    find = kt.fn(tasks.find_waiting).to(compute).distribute("spmd", workers=1)
    for _ in range(TIMES):
        (waiting,) = find(timeout=LIMIT_S)
        assert len(waiting) == 1
        os.kill(waiting[0], signal.SIGKILL)


@pytest.mark.long
@pytest.mark.local_only
@pytest.mark.parametrize("index", [1, 0])
def test_a_call_after_the_fork_server_of_a_node_was_killed(warm, index):
    counter = make_counter(warm)
    for _ in range(TIMES):
        server = expect_end(counter.server, index)
        if server is not None:
            with contextlib.suppress(
                ProcessLookupError
            ):  # it may be the PID of the server that was already killed
                os.kill(server[index], signal.SIGKILL)
        expect_end(counter.add, index)
