"""Attack: another user connects to the store of a local job.

torch's TCPStore has no authentication, so it listens only on 127.0.0.1. Other users of the machine reach it
there, so ranks that join by env:// meet in a file that others cannot open. The tests check all ports that
jobs and computes open while ranks meet. Another address of this machine, which strangers would use, must not
answer.
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
def test_store_of_a_job(nodes, procs):
    check(wl.run(meet_and_look, nodes=nodes, procs=procs, quiet=True), nodes * procs)


def test_store_of_a_restarted_attempt():
    check(wl.run(fail_once_then_meet, procs=2, restarts=2, quiet=True), 2)


def test_store_of_a_compute():
    compute = wl.Compute(engine="local", name="store-address")
    try:
        remote = wl.fn(meet_and_look).to(compute).distribute("pytorch", workers=2, procs=1)
        check(remote(), 2)
        check(remote(), 2)
    finally:
        compute.teardown()


@pytest.mark.parametrize("use_libuv", ["1", "0"], ids=["libuv", "legacy"])
def test_store_address_with_each_of_the_torch_servers(use_libuv):
    check(wl.run(meet_and_look, procs=2, quiet=True, env={"USE_LIBUV": use_libuv}), 2)


def check_private(results):
    assert [result["total"] for result in results] == [2, 2]
    assert [result["num_new"] for result in results] == [0, 0], "ranks meet where anyone can join"
    assert {result["mode"] for result in results} == {0o700}


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_other_users_cannot_join_the_ranks_of_a_job(start):
    results = wl.run(meet_and_read_store, procs=2, quiet=True, start=start)
    check_private(results)
    # a script may open a client, as under torchrun
    assert results[0]["has_client"] == (start == "fork")


def test_other_users_cannot_join_the_ranks_of_a_call():
    compute = wl.Compute(engine="local", name="store-private")
    try:
        remote = wl.fn(meet_and_read_store).to(compute).distribute("pytorch", workers=2, procs=1)
        check_private(remote())
        check_private(remote())
    finally:
        compute.teardown()
