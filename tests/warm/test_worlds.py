"""Processes that run a call: fresh ones, kept ones, and kept ones that hold objects."""

from __future__ import annotations

import pytest
import warm_tasks as tasks

import windlass as kt


def test_each_call_has_fresh_processes(warm):
    remote = kt.fn(tasks.whoami).to(warm).distribute("spmd", workers=2, procs=2)
    pids = [(each["agent"], each["pid"]) for _ in range(3) for each in remote()]
    assert len(set(pids)) == 12


def test_keep_process_keeps_them(warm):
    remote = kt.fn(tasks.whoami, keep="process").to(warm).distribute("spmd", workers=2, procs=2)
    first = [(each["agent"], each["pid"]) for each in remote()]
    assert len(set(first)) == 4
    for _ in range(3):
        assert [(each["agent"], each["pid"]) for each in remote()] == first


def test_kept_and_fresh_calls_do_not_disturb_each_other(warm):
    kept = kt.fn(tasks.whoami, keep="process").to(warm).distribute("spmd", workers=2)
    fresh = kt.fn(tasks.whoami).to(warm).distribute("spmd", workers=2)
    first = [each["pid"] for each in kept()]
    for there, pid in zip(
        fresh(), first, strict=True
    ):  # compared by node, because PIDs are only unique there
        assert there["pid"] != pid
    assert [each["pid"] for each in kept()] == first


def test_an_exception_in_a_kept_process_leaves_it_alive(warm):
    counter = kt.cls(tasks.Counter).to(warm)
    counter.add()
    with pytest.raises(tasks.Wrong):
        counter.fail()
    assert counter.add() == 2


# -- classes -------------------------------------------------------------------------------------


def test_an_object_keeps_its_state_on_every_rank(warm, shared):
    args = {"start": 5, "folder": shared.path}
    counter = kt.cls(tasks.Counter, init_args=args).to(warm).distribute("spmd", workers=2, procs=2)
    assert counter.add() == [6, 6, 6, 6]
    assert counter.add(2) == [8, 8, 8, 8]
    assert counter.add(collect="head") == 9
    for rank in range(4):
        assert shared.read(f"made-{rank}") == "made\n"


def test_the_constructor_has_the_whole_rank_environment(warm):
    counter = kt.cls(tasks.Counter).to(warm).distribute("spmd", workers=2, procs=2)
    born = counter.was_born()
    now = counter.whoami()
    assert born == now
    assert [each["rank"] for each in born] == [0, 1, 2, 3]
    assert {each["world"] for each in born} == {4}
    assert all(port > 0 for each in born for _, port in [each["master"]])


def test_a_process_group_of_an_object_is_kept(warm):
    counter = kt.cls(tasks.Counter).to(warm).distribute("pytorch", workers=2)
    assert [counter.all_reduce(value) for value in (1, 2, 3)] == [[2, 2], [4, 4], [6, 6]]


def test_another_object_of_the_class_has_its_own_state(warm):
    first = kt.cls(tasks.Counter, init_args=(3,)).to(warm)
    assert first.add() == 4
    assert kt.cls(tasks.Counter, init_args=(10,)).to(warm).add() == 11


def test_class_remote_is_not_callable(warm):
    counter = kt.cls(tasks.Counter).to(warm)
    with pytest.raises(kt.SpecError, match="call its methods"):
        counter()
    with pytest.raises(AttributeError, match="no_such"):
        counter.no_such()


def test_dead_rank_fails_the_call_and_the_next_recreates_the_object(warm):
    counter = kt.cls(tasks.Counter, init_args=(1,)).to(warm).distribute("spmd", workers=2)
    assert counter.add() == [2, 2]
    with pytest.raises(kt.RankFailed, match="rank 1"):
        counter.die(1)
    assert counter.add() == [2, 2]


# -- rendezvous of ranks -------------------------------------------------------------------------


@pytest.mark.cluster_only("on one machine many worlds share an address, so ports are any")
def test_the_master_port_is_29500_in_every_call(on, make):
    remote = kt.fn(tasks.whoami).to(make()).distribute("pytorch", workers=2)
    for _ in range(3):
        found = remote()
        assert {each["master"] for each in found} == {(found[0]["address"], 29500)}


@pytest.mark.cluster_only("on one machine many worlds share an address, so ports are any")
def test_the_master_port_is_29500_without_torch_too(on, make):
    remote = kt.fn(tasks.whoami).to(make().distribute("spmd", workers=2))
    for _ in range(3):
        found = remote()
        assert {each["master"] for each in found} == {(found[0]["address"], 29500)}


@pytest.mark.local_only("in pods it is the address of node 0's pod")
def test_the_master_address_is_this_machine(warm):
    found = kt.fn(tasks.whoami).to(warm).distribute("spmd", workers=2)()
    assert {each["master"][0] for each in found} == {"127.0.0.1"}
    assert len({each["master"] for each in found}) == 1


def test_single_rank_has_no_agent_store(warm):
    """Processes that the rank starts can then meet by themselves. Each single-rank world has its own port."""
    kept = kt.cls(tasks.Counter).to(warm).distribute("pytorch", workers=1)
    fresh = kt.fn(tasks.all_reduce).to(warm).distribute("pytorch", workers=1)
    many = kt.fn(tasks.all_reduce).to(warm).distribute("pytorch", workers=2)
    look = kt.fn(tasks.environment).to(warm).distribute("pytorch", workers=2)
    assert kept.add(1) == [1]  # its port is reserved from now on
    assert many(5) == [11, 11]
    assert fresh(5) == [5]
    assert kept.all_reduce(5) == [5]
    assert fresh(6) == [6]
    name = "TORCHELASTIC_USE_AGENT_STORE"
    assert [each[name] for each in look(name)] == ["True", "True"]
    assert [each[name] for each in look(name, ranks=[1])] == ["False"]
    assert kt.fn(tasks.environment).to(warm)(name) == {name: "False"}


@pytest.mark.long
@pytest.mark.local_only
@pytest.mark.parametrize("on_compute", [True, False], ids=["compute", "remote"])
def test_node_range_uses_the_maximum_if_available(make, on_compute):
    compute = make()
    if on_compute:
        remote = kt.fn(tasks.whoami).to(compute.distribute("spmd", workers="2:4"))
    else:
        remote = kt.fn(tasks.whoami).to(compute).distribute("spmd", workers="2:4")
    found = remote()
    assert [each["rank"] for each in found] == [0, 1, 2, 3]
    assert kt.cls(tasks.Counter).to(compute).distribute("spmd", workers="1:2").add() == [1, 1]


@pytest.mark.cluster_only
def test_node_range_uses_fewer_if_more_are_unavailable(make, capfd):
    """The cluster has two machines, and no two of these nodes may share one."""
    compute = make(spread="hard").distribute("spmd", workers="1:3")
    remote = kt.fn(tasks.whoami).to(compute)
    assert [each["rank"] for each in remote()] == [0, 1]
    assert "starting with 2 of 3 nodes" in capfd.readouterr().err
    assert [each["rank"] for each in remote()] == [0, 1]
