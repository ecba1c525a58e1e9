"""Lost ranks and nodes, during and between calls. The same client can continue in each case."""

from __future__ import annotations

import pytest
import warm_tasks as tasks

import windlass as kt

WAIT_S = 120.0


@pytest.mark.parametrize("keep", ["", "process"], ids=["fresh", "kept"])
def test_killed_rank_fails_the_call_and_the_next_works(warm, shared, keep):
    remote = kt.fn(tasks.die, keep=keep).to(warm).distribute("spmd", workers=2)
    with pytest.raises(kt.RankFailed, match="rank 1") as caught:
        remote(1, shared.path)
    assert "SIGKILL" in str(caught.value)
    again = kt.fn(tasks.echo, keep=keep).to(warm).distribute("spmd", workers=2)
    assert again(1) == [((1,), {})] * 2
    with pytest.raises(kt.RankFailed, match="rank 0"):
        remote(0, shared.path)
    assert again(2) == [((2,), {})] * 2


def test_a_rank_that_is_killed_in_torch_fails_the_call(warm, shared):
    remote = kt.fn(tasks.die).to(warm).distribute("pytorch", workers=2)
    with pytest.raises(kt.RankFailed, match="rank 1"):
        remote(1, shared.path)
    group = kt.fn(tasks.all_reduce).to(warm).distribute("pytorch", workers=2)
    assert group(1) == [3, 3]


@pytest.mark.long
def test_ranks_meet_again_after_the_fork_server_was_killed(make):
    """The ranks' store was lost with the fork server."""
    compute = make()
    group = kt.fn(tasks.all_reduce).to(compute).distribute("pytorch", workers=2)
    assert group(1) == [3, 3]
    with pytest.raises(kt.RankFailed, match="rank 0"):
        kt.fn(tasks.kill_fork_server).to(compute).distribute("pytorch", workers=2)()
    assert group(2) == [5, 5]


@pytest.mark.long
@pytest.mark.parametrize("index", [1, 0])
def test_node_lost_between_calls_is_replaced(on, make, index):
    compute = make()
    remote = kt.fn(tasks.whoami).to(compute).distribute("spmd", workers=2)
    before = [each["agent"] for each in remote()]
    on.end_node(compute, index, before[index])
    after = [each["agent"] for each in remote()]
    assert after[index] != before[index]
    assert [each["rank"] for each in remote()] == [0, 1]
    if index == 1:
        assert after[0] == before[0]


@pytest.mark.long
def test_both_nodes_lost_between_calls(on, make):
    compute = make()
    remote = kt.fn(tasks.whoami).to(compute).distribute("spmd", workers=2)
    before = [each["agent"] for each in remote()]
    for index in (1, 0):
        on.end_node(compute, index, before[index])
    after = [each["agent"] for each in remote()]
    assert set(after).isdisjoint(before)


@pytest.mark.long
def test_object_of_a_lost_node_is_recreated(on, make):
    compute = make()
    counter = kt.cls(tasks.Counter, init_args=(10,)).to(compute).distribute("spmd", workers=2)
    assert counter.add() == [11, 11]
    on.end_node(compute, 1, counter.whoami()[1]["agent"])
    assert counter.add() == [11, 11]


@pytest.mark.parametrize("index", [1, 0])
def test_a_node_lost_during_a_call_fails_it_and_the_next_works(on, make, shared, index):
    compute = make()
    remote = kt.fn(tasks.whoami).to(compute).distribute("spmd", workers=2)
    before = [each["agent"] for each in remote()]
    blocked = kt.fn(tasks.block).to(compute).distribute("spmd", workers=2)
    job = blocked.submit(f"{shared.path}/started", f"{shared.path}/never")
    shared.wait_for("started")
    on.end_node(compute, index, before[index])
    error = job.exception(timeout_s=WAIT_S)
    assert isinstance(error, kt.NodeLost)
    assert [each["rank"] for each in remote()] == [0, 1]


@pytest.mark.long
def test_code_is_sent_again_after_node_0_was_lost(on, make, project):
    project.write("{stem}.py", "def value():\n    return 1\n")
    compute = make()
    remote = kt.fn(project.load("{stem}").value).to(compute).distribute("spmd", workers=2)
    assert remote() == [1, 1]
    agent = kt.fn(tasks.find_agent).to(compute)()
    on.end_node(compute, 0, agent)
    project.write("{stem}.py", "def value():\n    return 2\n")
    assert remote() == [2, 2]
