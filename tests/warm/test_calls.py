"""Calls: return values, ranks, time limits, forms of calls, and exceptions."""

from __future__ import annotations

import asyncio
import time
import traceback

import pytest
import warm_tasks as tasks
from waits import wait_for

import windlass as kt


def test_single_rank_returns_the_bare_value(warm):
    remote = kt.fn(tasks.echo).to(warm)
    assert remote(1, word="two") == ((1,), {"word": "two"})
    assert remote() == ((), {})


def test_distributed_call_returns_a_list_in_rank_order(warm):
    alone = kt.fn(tasks.whoami).to(warm)
    before = alone()
    found = alone.distribute("spmd", workers=2, procs=2)()
    assert [each["rank"] for each in found] == [0, 1, 2, 3]
    assert [each["local_rank"] for each in found] == [0, 1, 0, 1]
    assert {each["world"] for each in found} == {4}
    agents = [each["agent"] for each in found]
    assert agents[0] == agents[1] == before["agent"]
    assert agents[2] == agents[3] != before["agent"]
    assert alone()["agent"] == before["agent"]


def test_distribute_on_the_compute(warm):
    found = kt.fn(tasks.whoami).to(warm.distribute("spmd", workers=2))()
    assert [each["rank"] for each in found] == [0, 1]
    assert len({each["agent"] for each in found}) == 2


def test_ranks_never_permute_between_calls(warm):
    remote = kt.fn(tasks.whoami).to(warm).distribute("spmd", workers=2, procs=2)
    first = [each["agent"] for each in remote()]
    for _ in range(4):
        assert [each["agent"] for each in remote()] == first


def test_collect_head_returns_the_value_of_rank_0(warm):
    remote = kt.fn(tasks.whoami).to(warm).distribute("spmd", workers=2)
    assert remote(collect="head")["rank"] == 0
    assert remote.options(collect="head")()["world"] == 2
    assert [each["rank"] for each in remote(collect="all")] == [0, 1]


def test_chosen_ranks_are_a_world_of_their_own(warm):
    remote = kt.fn(tasks.whoami).to(warm).distribute("spmd", workers=2, procs=2)
    all_ranks = remote()
    found = remote(ranks=[1, 3])
    assert [(each["rank"], each["world"], each["local_rank"]) for each in found] == [
        (0, 2, 0),
        (1, 2, 0),
    ]
    assert [each["agent"] for each in found] == [all_ranks[1]["agent"], all_ranks[3]["agent"]]
    assert len(remote()) == 4


def test_chosen_ranks_of_another_node_form_a_group(warm):
    remote = kt.fn(tasks.all_reduce).to(warm).distribute("pytorch", workers=2, procs=2)
    assert remote(1, ranks=[2, 3]) == [3, 3]


def test_unknown_ranks_are_refused(warm):
    remote = kt.fn(tasks.whoami).to(warm).distribute("spmd", workers=2)
    with pytest.raises(kt.WindlassError, match="rank 5 does not exist: the compute has 2 ranks"):
        remote(ranks=[5])
    assert len(remote()) == 2


def test_a_second_process_group_works(warm):
    remote = kt.fn(tasks.all_reduce).to(warm).distribute("pytorch", workers=2, procs=2)
    assert [remote(value) for value in (0, 1, 2)] == [[6] * 4, [10] * 4, [14] * 4]


def test_a_command_runs_once_on_every_node(warm, capfd):
    kt.fn("python3 -c 'print(\"here\")'").to(warm).distribute("command", workers=2)()
    assert capfd.readouterr().out.count("here\n") == 2


def test_output_of_ranks_is_shown(warm, capfd):
    kt.fn(tasks.say).to(warm)("alone")
    assert capfd.readouterr().out == "alone from 0\n"
    kt.fn(tasks.say).to(warm).distribute("spmd", workers=2)("both")
    out = capfd.readouterr().out
    assert "both from 0" in out
    assert "both from 1" in out
    kt.fn(tasks.say, logs=False).to(warm)("quiet")
    assert capfd.readouterr().out == ""


# -- forms of calls ------------------------------------------------------------------------------


def test_submit_returns_a_job(warm, shared):
    remote = kt.fn(tasks.block).to(warm).distribute("spmd", workers=2)
    job = remote.submit(f"{shared.path}/started", f"{shared.path}/go")
    shared.wait_for("started")
    assert isinstance(job, kt.Job)
    assert not job.done()
    with pytest.raises(kt.WaitTimeout):
        job.results(timeout_s=0.1)
    shared.touch("go")
    assert len(job.results(timeout_s=60)) == 2
    assert job.done()
    assert job.status().phase.value == "succeeded"
    assert job.exception() is None


def test_a_submitted_call_can_be_cancelled(warm, shared):
    job = kt.fn(tasks.block).to(warm).submit(f"{shared.path}/started", f"{shared.path}/never")
    shared.wait_for("started")
    job.cancel()
    with pytest.raises(kt.JobCancelled):
        job.results(timeout_s=60)
    assert kt.fn(tasks.echo).to(warm)(1) == ((1,), {})


def test_the_logs_of_a_submitted_call(warm):
    job = kt.fn(tasks.say).to(warm).distribute("spmd", workers=2).submit("later")
    job.wait(60)
    wait_for(lambda: len(list(job.logs())) == 2, "both ranks' lines are there", 20.0)
    assert {(line.rank, line.text) for line in job.logs()} == {
        (0, "later from 0"),
        (1, "later from 1"),
    }


def test_acall_does_not_block_the_loop(warm):
    remote = kt.fn(tasks.take_time).to(warm)

    async def call_two():
        return await asyncio.gather(remote.acall("a"), remote.acall("b"))

    assert [found[0] for found in asyncio.run(call_two())] == ["a", "b"]


def test_a_coroutine_function_is_awaited_in_its_rank(warm):
    assert kt.fn(tasks.answer_later).to(warm)("yes") == "yes"


def test_a_timeout_ends_the_call_and_the_next_one_works(warm, shared):
    remote = kt.fn(tasks.block).to(warm)
    started = time.monotonic()
    with pytest.raises(kt.JobTimeout, match="time limit of 1 s"):
        remote(f"{shared.path}/started", f"{shared.path}/never", timeout=1)
    assert time.monotonic() - started < 40
    shared.touch("go")
    assert remote(f"{shared.path}/started", f"{shared.path}/go", timeout=60)


def test_timeout_parameter_belongs_to_the_function(warm):
    assert kt.fn(tasks.own_timeout).to(warm)(timeout=0.001) == 0.001


def test_generator_of_rank_0_is_streamed_immediately(warm, shared):
    remote = kt.fn(tasks.count_slowly).to(warm)
    words = remote(shared.path, stream=True)
    assert next(words) == "first"
    shared.touch("seen")
    assert list(words) == ["second"]
    distributed = kt.fn(tasks.count_up).to(warm).distribute("spmd", workers=2)
    assert list(distributed(3, stream=True)) == [0, 1, 2]


def test_stream_that_raises_yields_earlier_items(warm):
    found = kt.fn(tasks.yield_and_raise).to(warm)(stream=True)
    assert next(found) == 1
    with pytest.raises(tasks.Wrong, match="after one"):
        next(found)


def test_closed_stream_is_cancelled(warm, shared):
    words = kt.fn(tasks.count_slowly).to(warm)(shared.path, stream=True)
    assert next(words) == "first"
    words.close()
    assert kt.fn(tasks.echo).to(warm)(1) == ((1,), {})


def test_a_stream_waits_for_a_slow_reader(on, project, warm, shared):
    """The generator runs ahead by 4 MiB at most, plus the socket buffers on the way."""
    project.write(
        "{stem}.py",
        """
        def pieces(path):
            for number in range(400):
                with open(path, "a") as file:
                    file.write(".")
                yield bytes(256 << 10)
        """,
    )
    pieces = kt.fn(project.load("{stem}").pieces).to(warm)(f"{shared.path}/yielded", stream=True)
    next(pieces)
    for _ in range(300):  # long enough for an unlimited generator to finish
        on.info(warm)
    assert 0 < count_yielded(shared) < 300
    assert sum(1 for _ in pieces) == 399


def count_yielded(shared):
    return len(shared.read("yielded"))


# -- exceptions ----------------------------------------------------------------------------------


def test_exception_keeps_its_type_and_traceback(warm):
    remote = kt.fn(tasks.fail).to(warm).distribute("spmd", workers=2)
    with pytest.raises(tasks.Wrong) as caught:
        remote(1)
    assert caught.value.number == 7
    shown = "".join(traceback.format_exception(caught.value))
    assert 'raise Wrong("as asked", 7)' in shown
    assert "rank 1" in shown
    assert remote(9) == ["fine", "fine"]


def test_an_exception_of_a_submitted_call(warm):
    job = kt.fn(tasks.fail).to(warm).submit(0)
    error = job.exception(timeout_s=60)
    assert isinstance(error, tasks.Wrong)
    verdict = job.verdict()
    assert verdict is not None
    assert verdict.rank == 0


def test_exiting_early_is_not_a_success(warm):
    remote = kt.fn(tasks.leave).to(warm).distribute("spmd", workers=2)
    with pytest.raises(kt.RankFailed, match="rank 1"):
        remote(1, 3)
    assert remote(0, 0) == [None, None]


def test_wrong_arguments_are_refused_by_the_client(warm):
    remote = kt.fn(tasks.take_time).to(warm)
    with pytest.raises(kt.SpecError, match="take_time cannot be called"):
        remote()


def test_unpicklable_argument_is_named(warm):
    import threading

    remote = kt.fn(tasks.echo).to(warm)
    with pytest.raises(kt.BundleError, match=r"^echo: args\[0\]: a lock cannot be pickled"):
        remote(threading.Lock())
    assert remote(1) == ((1,), {})
    counter = kt.cls(tasks.Counter).to(warm)
    with pytest.raises(kt.BundleError, match=r"^Counter.add: number\['state'\]\[1\]: a lock"):
        counter.add({"state": [1, threading.Lock()]})


@pytest.mark.parametrize("keep", ["", "process"])
def test_exception_with_extra_arguments_keeps_its_type(warm, keep):
    with pytest.raises(tasks.Demanding, match="as asked!") as caught:
        kt.fn(tasks.demand, keep=keep).to(warm)("as asked", 7)
    assert caught.value.code == 7
