"""Ranks' return values arrive from every rank, in order and by value."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import pytest
import rank_work as work
from waits import wait_for

import windlass as wl

ARGUMENTS = [
    (
        "plain",
        "two words",
        '"quoted"',
        "it's",
        "$HOME",
        "a\nb",
        "tab\t",
        "",
        "-x",
        "--",
        "é😀",
        "\\n",
        "*",
    ),
    (1, -1.5, float("inf"), None, True, b"\x00\xff", [1, (2, {3})], {"k": {"v": 1}}),
    (Path("/a b/c"), range(3), complex(1, 2)),
]


@pytest.mark.parametrize("args", ARGUMENTS)
def test_arguments_arrive_unchanged(on, args):
    kwargs = {"key": "v a l", "other": args}
    assert on.run(work.echo, args, kwargs) == [(args, kwargs)]


def test_nan_arrives(on):
    [((value,), _)] = on.run(work.echo, (float("nan"),))
    assert math.isnan(value)


@pytest.mark.engine_matters
def test_every_rank_in_rank_order(on):
    assert on.run(work.rank, nodes=2, procs=3) == [0, 1, 2, 3, 4, 5]


@pytest.mark.long
def test_a_function_of_any_kind(on):
    offset = 10

    def closure():
        return offset + work.rank()

    class Counter:
        def __init__(self, start):
            self.start = start

        def count(self):
            return self.start + work.rank()

    assert on.run(closure, procs=2) == [10, 11]
    assert on.run(lambda: work.rank() * 2, procs=2) == [0, 2]
    assert on.run(functools.partial(work.echo, 1, b=2)) == [((1,), {"b": 2})]
    assert on.run(Counter(5).count, procs=2) == [5, 6]
    assert on.run("abc".upper) == ["ABC"]


def test_a_class_defined_here_comes_back_as_itself(on):
    class Result:
        def __init__(self, value):
            self.value = value

    [result] = on.run(lambda: Result(3))
    assert isinstance(result, Result)
    assert result.value == 3


@pytest.mark.engine_matters
def test_functions_by_file_by_module_and_commands(on, tmp_path, monkeypatch):
    (tmp_path / "my-script.py").write_text("def add(a, b=2):\n    return a + b\n")
    (tmp_path / "mod.py").write_text(
        "import sys\nprint('argv', sys.argv[1:])\nassert __name__ == '__main__'\n"
    )
    monkeypatch.chdir(tmp_path)
    assert on.run("my-script.py::add", (40,)) == [42]
    job = on.submit("-m mod", ["x", "--y=1"])
    assert job.results() == [None]
    assert [line.text for line in job.logs()] == ["argv ['x', '--y=1']"]
    job = on.submit(["sh", "-c", "echo rank $RANK of $WORLD_SIZE"], procs=2)
    job.wait(90)
    assert sorted(line.text for line in job.logs()) == ["rank 0 of 2", "rank 1 of 2"]


def test_large_results(on):
    [value] = on.run(lambda: bytes(50_000_000))
    assert value == bytes(50_000_000)


def test_an_unpicklable_result_is_reported_with_its_path(on):
    def make():
        import threading

        return {"model": [1, {"lock": threading.Lock()}]}

    with pytest.raises(
        wl.BundleError, match=r"result\['model'\]\[1\]\['lock'\]: a lock cannot be pickled"
    ):
        on.run(make)
    with pytest.raises(wl.BundleError, match="a generator cannot be pickled"):
        on.run(lambda: (i for i in range(3)))


@pytest.mark.quick
def test_what_cannot_be_sent_is_refused_before_anything_starts(on, home):
    import threading

    lock = threading.Lock()

    def uses_lock():
        return lock.locked()

    with pytest.raises(wl.BundleError, match="uses 'lock': a lock cannot be pickled"):
        on.run(uses_lock)
    assert not (home / "jobs").exists()
    assert not (home / "kubernetes").exists()
    assert wl.jobs() == []


def test_an_early_return_is_not_a_failure(on, shared):
    job = on.submit(work.leave_early, procs=2, env={"FLAG": f"{shared.path}/flag"})
    wait_for(lambda: job.status().count("returned") == 1, "rank 0 returned")
    assert not job.done()
    shared.touch("flag")
    assert job.results() == [0, 1]


def test_result_of_one_rank(on):
    job = on.submit(work.rank, procs=2)
    assert job.result(1) == 1
    with pytest.raises(wl.SpecError, match="rank 2 does not exist"):
        job.result(2)
    assert job.exception() is None
    assert job.verdict() is None


@pytest.mark.local_only("the local folder is inspected")
@pytest.mark.parametrize("procs", [1, 3])
def test_a_result_that_is_gone_is_an_error_that_names_its_rank(on, home, procs):
    job = on.submit(work.rank, procs=procs)
    job.wait(60)
    (home / "jobs" / job.id / "attempt-0" / f"rank-{procs - 1}.result").unlink()
    with pytest.raises(wl.EngineError, match=f"the result of rank {procs - 1} is missing"):
        job.results()
    assert [left.state for left in job.outcomes()][-1] == "missing"
