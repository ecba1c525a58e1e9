"""Ranks exit like an interpreter: streams flushed, objects finalized, threads and children joined."""

from __future__ import annotations

from pathlib import Path

import pytest
from waits import wait_for

HOWS = {"return": 0, "raise": 1, "exit": 3}
FILES = [
    "text.csv",
    "binary.bin",
    "wrapped.txt",
    "local.txt",
    "compressed.gz",
    "c_file.txt",
    "c_exit_hook.txt",
    "logging.txt",
]
STARTS = ["fork", "spawn"]


@pytest.fixture(scope="module", params=[*HOWS, "spawn"])
def sides(request, launch):
    """Return python and windlass after the same exit. Spawned ranks return."""
    options = ("--start", "spawn") if request.param == "spawn" else ()
    how = "return" if request.param == "spawn" else request.param
    return [
        launch("python", "ending.py", how),
        launch("windlass", "ending.py", how, options=options),
    ]


def test_status(sides):
    assert sides[1].status == sides[0].code


@pytest.mark.parametrize("name", FILES)
def test_open_file(sides, name):
    python, windlass = ((side.project / name) for side in sides)
    assert python.stat().st_size > 0
    assert windlass.exists()
    assert windlass.read_bytes() == python.read_bytes()


@pytest.mark.parametrize("pattern", ["archive.zip", "shelf*"])
def test_open_file_of_a_library(sides, pattern):
    """Python does not complete these files either, but they must have the same size."""
    python, windlass = (
        {path.name: path.stat().st_size for path in side.project.glob(pattern)} for side in sides
    )
    assert python
    assert windlass == python


def temporary(side) -> list[str]:
    return sorted(path.name.partition("-")[0] for path in (side.project / "temporary").iterdir())


def test_temporary_files(sides):
    assert temporary(sides[0]) == ["kept"]
    assert temporary(sides[1]) == temporary(sides[0])


def order(side) -> list[str]:
    return (side.project / "order.txt").read_text().splitlines()


THREADS = ["thread", "future 0", "future 1", "future 2"]


@pytest.mark.parametrize("line", THREADS)
def test_thread_is_joined(sides, line):
    for side in sides:
        assert order(side).index(line) < order(side).index("atexit registered second")


@pytest.mark.parametrize(
    "line",
    [
        "atexit registered first",
        "atexit registered second",
        "weakref.finalize",
        "generator closed",
        "del first",
        "del second",
        "del hidden",
        "del of a module",
        "del in a cycle",
        "del finalized",
    ],
)
def test_runs_at_exit(sides, line):
    assert line in order(sides[0])
    assert line in order(sides[1])


def test_nothing_runs_that_python_does_not_run(sides):
    assert sorted(order(sides[1])) == sorted(order(sides[0]))


def test_exit_handlers_run_in_the_order_of_python(sides):
    python, windlass = (
        [line for line in order(side) if line.startswith(("atexit", "weakref", "end"))]
        for side in sides
    )
    assert windlass == python


def test_objects_are_finalized_in_the_order_of_python(sides):
    python, windlass = (
        [line for line in order(side) if line.startswith(("del", "gen", "end"))] for side in sides
    )
    assert windlass == python


@pytest.mark.parametrize(
    "text",
    [
        "held by a stream of the user's own",
        "printf without a newline",
        "printed by thread",
        "printed by future 2",
    ],
)
def test_late_output(sides, text):
    assert text in sides[0].text("out")
    assert text in sides[1].text("out")


def test_late_errors(sides):
    assert sides[1].text("err").rstrip("\n") == sides[0].text("err").rstrip("\n")


# -- multiprocessing -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parents(launch):
    return [launch(side, "processes.py", "a") for side in ("python", "windlass")]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("name", ["child", "code", "failing", "squares"])
def test_children_of_a_script(parents, method, name):
    python, windlass = (side.seen("processes")[method] for side in parents)
    assert windlass[name] == python[name]


@pytest.mark.parametrize("name", ["executor", "manager"])
def test_executors_and_managers(parents, name):
    assert parents[1].seen("processes")[name] == parents[0].seen("processes")[name]


def test_script_with_children_succeeds(parents):
    assert [side.status for side in parents] == [0, 0]
    assert parents[1].verdict is None


def test_output_of_children(parents):
    python, windlass = (sorted(side.text("out").splitlines()) for side in parents)
    assert windlass == python


def test_children_are_joined_unless_they_are_daemons(parents):
    for side in parents:
        assert (side.project / "joined.txt").exists()
        assert not (side.project / "terminated.txt").exists()


def test_leaked_shared_memory_is_removed(parents):
    """A process of Python's own, which outlives the script briefly, removes it."""
    for side in parents:
        path = Path("/dev/shm") / (side.project / "leaked.txt").read_text()
        wait_for(lambda path=path: not path.exists(), f"{path} of {side.folder.name} is gone", 10.0)
