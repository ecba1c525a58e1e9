"""Strangers at a local job's store: torch's TCPStore asks nobody who it is, so it is kept at 127.0.0.1.
Other users of the machine reach it there. So ranks that join by env:// meet in a file that they cannot open.

Whatever opens a port while ranks meet is looked at, in jobs and in computes; and another address of this very
machine, which strangers would use, finds nothing there.
"""

from __future__ import annotations

import pytest
from attacks.listening import fail_once_then_meet, meet_and_look, meet_and_read_store

import windlass as wl


def check(results, num_ranks):
    assert [result["total"] for result in results] == [num_ranks] * num_ranks
    for result in results:
        assert ("127.0.0.1", result["port"]) in result["listening"]
        assert {address for address, _ in result["listening"]} == {"127.0.0.1"}, result
        assert result["answers"] == []


@pytest.mark.parametrize(("nodes", "procs"), [(1, 2), (2, 1), (2, 2)])
def test_the_store_of_a_job(nodes, procs):
    check(wl.run(meet_and_look, nodes=nodes, procs=procs, quiet=True), nodes * procs)


def test_the_store_of_a_restarted_attempt():
    check(wl.run(fail_once_then_meet, procs=2, restarts=2, quiet=True), 2)


def test_the_store_of_a_compute():
    compute = wl.Compute(engine="local", name="store-address")
    try:
        remote = wl.fn(meet_and_look).to(compute).distribute("pytorch", workers=2, procs=1)
        check(remote(), 2)
        check(remote(), 2)
    finally:
        compute.teardown()


@pytest.mark.parametrize("use_libuv", ["1", "0"], ids=["libuv", "legacy"])
def test_ranks_meet_there_whichever_of_torchs_servers_they_ask_for(use_libuv):
    check(wl.run(meet_and_look, procs=2, quiet=True, env={"USE_LIBUV": use_libuv}), 2)


def check_private(results):
    assert [result["total"] for result in results] == [2, 2]
    assert [result["num_new"] for result in results] == [0, 0], "ranks meet where anyone can join"
    assert {result["mode"] for result in results} == {0o700}


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_other_users_cannot_join_the_ranks_of_a_job(start):
    results = wl.run(meet_and_read_store, procs=2, quiet=True, start=start)
    check_private(results)
    assert results[0]["has_client"] == (start == "fork")  # a script may open one, as under torchrun


def test_other_users_cannot_join_the_ranks_of_a_call():
    compute = wl.Compute(engine="local", name="store-private")
    try:
        remote = wl.fn(meet_and_read_store).to(compute).distribute("pytorch", workers=2, procs=1)
        check_private(remote())
        check_private(remote())
    finally:
        compute.teardown()
