"""A finished rank keeps its process and connections open for the others, and loses nothing while it waits."""

from __future__ import annotations

import pytest
import rank_work as work

from windlass.waiting import wait_until


@pytest.fixture
def pair(on, shared):
    """Start two ranks. Rank 0 listens, leaves a file open and returns."""

    def start(*, fail=False, **settings):
        args = [str(shared.path), fail]
        job = on.submit(work.offer_a_port_and_return, args, **settings)
        shared.wait_for("port")
        return job

    return start


@pytest.mark.parametrize("size", [{"procs": 2}, {"nodes": 2}], ids=["procs", "nodes"])
def test_its_peers_can_still_connect(pair, shared, size):
    job = pair(**size)
    assert not shared.exists("ended")
    shared.touch("go")
    assert job.results() == ["offered", "connected"]
    assert (shared.read("left-open"), shared.read("ended")) == ("x", "x")


def test_it_ends_like_any_other_when_a_peer_fails(pair, shared):
    job = pair(procs=2, fail=True)
    shared.touch("go")
    with pytest.raises(ValueError, match="after the other was done"):
        job.results()
    assert job.outcomes()[0].state == "returned"
    assert (shared.read("left-open"), shared.read("ended")) == ("x", "x")


def test_it_waits_no_longer_than_its_limit(pair, shared):
    job = pair(procs=2, peer_wait_s=0)
    shared.wait_for(
        "ended"
    )  # written by an exit handler, which runs before Python flushes open files
    assert wait_until(lambda: shared.read("left-open") == "x", timeout_s=60)
    assert not job.done()
    shared.touch("go")
    assert job.results() == ["offered", "refused"]
