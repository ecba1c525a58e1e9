"""Evaluation of measurements by the warm-compute benchmark, and the answers it accepts."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from waits import wait_for


@pytest.fixture
def case(load):
    return load("warm_case")


def test_peer_is_compared_with_the_line_it_names(case):
    ours = case.Line(case="edit", who="windlass", seconds=[0.1, 0.2, 9.0], limit_s=0.25)
    theirs = case.Line(case="edit", who="x", seconds=[20.0], against="windlass", times=60)
    other = case.Line(case="other", who="x", seconds=[20.0], against="windlass", times=60)

    ratio = case.find_ratio(theirs, [ours, theirs, other])

    assert ratio == 100.0
    assert case.judge(theirs, ratio) == [(">= 60x: met", True)]
    assert case.judge(ours, None) == [("<= 0.25 s: met", True)]
    assert case.find_ratio(other, [ours, theirs, other]) is None


def test_worst_is_the_slowest_of_few_and_the_99th_percentile_of_many(case):
    few = case.Line(case="a", who="b", seconds=[3.0, 1.0, 2.0])
    many = case.Line(case="a", who="b", seconds=[float(n) for n in range(200)])

    assert (few.median_s, few.worst_s) == (2.0, 3.0)
    assert many.worst_s == 198.0


def test_missing_peer_has_an_install_hint(case, load):
    note = load("warm_setup").INSTALL["monarch"]

    table = case.render_table([case.Line(case="empty", who="monarch", note=note)])

    assert "pip install torchmonarch" in table


def test_old_code_or_a_missing_rank_invalidates_the_measurement(load):
    project = load("warm_project")
    answers = [{"rank": 0, "number": 101, "at": 5.0}, {"rank": 1, "number": 101, "at": 7.0}]

    assert project.read_moment(answers, ranks=2, number=101) == 7.0
    with pytest.raises(RuntimeError, match="before the edit"):
        project.read_moment(answers, ranks=2, number=102)
    with pytest.raises(RuntimeError, match=r"expected ranks 0\.\.2"):
        project.read_moment(answers, ranks=3, number=101)


def test_an_edit_changes_one_file_and_no_size(load, tmp_path):
    project = load("warm_project")
    project.make_project(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.py")}

    project.edit(tmp_path, 555)

    changed = [path for path, text in before.items() if path.read_bytes() != text]
    assert [path.name for path in changed] == ["bench_step.py"]
    assert len(changed[0].read_bytes()) == len(before[changed[0]])


def test_used_memory_is_measured(load):
    left, looks = [1000], []

    def available():
        looks.append(left[0])
        return left[0]

    with load("warm_memory").watched(available) as grown:
        left[0] = 400
        wait_for(lambda: 400 in looks, "a look", 30)
        left[0] = 900

    assert grown == [600]
    assert load("warm_memory").read_available() > 0


def test_marked_processes_are_found_while_running(load):
    marked = load("warm_memory").Marked("BENCH_RUN=of-this-test")
    env = {**os.environ, "BENCH_RUN": "of-this-test"}
    with subprocess.Popen(
        [sys.executable, "-uc", "print(1); input()"],
        env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout
        assert process.stdout.readline() == b"1\n"
        assert marked.pids() == [process.pid]
        process.communicate(b"\n", timeout=30)

    assert marked.pids() == []


def test_json_has_every_second_and_every_target(case):
    line = case.Line(case="empty", who="windlass, kept", seconds=[0.001], limit_s=0.0005)

    (found,) = json.loads(json.dumps(case.render_json([line])))

    assert found["seconds"] == [0.001]
    assert found["targets"] == [{"text": "<= 0.50 ms: missed", "is_met": False}]
