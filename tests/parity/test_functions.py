"""A function finds and leaves the same under `wl.run`, `wl.submit`, a warm call and Python itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from parity.launches import PROJECT
from parity.test_start import DELIBERATE, PROCESS
from waits import wait_for

import windlass as wl

sys.path.insert(0, str(PROJECT))
import functions

# Each with its reason.
FUNCTIONS_ONLY = {
    "depth_of_recursion": "a function has its caller's frames below it, whoever calls",
}
CALLS_ONLY = {
    "warning_options": "a compute has torch imported for whatever is called, and torch adds filters",
}
# Over this one a call comes and its answer goes; children do not inherit it.
_CHANNEL = ["socket"]
WAYS = ["run", "submit", "call"]


@pytest.fixture(scope="module")
def call(home) -> Any:
    """Call a function of the project in one of the ways, on two ranks."""
    compute = None
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(PROJECT)
        patch.setenv("WINDLASS_ENGINE", "local")
        for name in list(os.environ):
            if name.startswith("PYTHON"):
                patch.delenv(name)

        def call(way: str, function: Callable[..., Any], *args: Any) -> list[Any]:
            nonlocal compute
            if way == "run":
                return wl.run(function, args=args, procs=2, quiet=True)
            if way == "submit":
                return wl.submit(function, args=args, procs=2).results()
            if compute is None:
                compute = wl.Compute(name=f"parity-{os.getpid()}", inactivity_ttl=240)
            remote = wl.fn(function).to(compute).distribute("pytorch", workers=1, procs=2)
            return remote(*args)

        yield call
        if compute is not None:
            compute.teardown()


@pytest.fixture(scope="module")
def alone(call) -> dict[str, Any]:
    """What the function finds when Python calls it."""
    code = "import functions, json; print(json.dumps(functions.look()))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=PROJECT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def looked(call) -> Callable[[str], list[Any]]:
    known: dict[str, list[Any]] = {}

    def look(way: str) -> list[Any]:
        if way not in known:
            known[way] = json.loads(json.dumps(call(way, functions.look)))
        return known[way]

    return look


@pytest.mark.parametrize("name", PROCESS)
@pytest.mark.parametrize("way", WAYS)
def test_a_function_finds(alone, looked, way, name):
    reason = {**DELIBERATE, **FUNCTIONS_ONLY, **(CALLS_ONLY if way == "call" else {})}.get(name)
    if name == "warning_options" and "torch" in sys.modules:
        reason = "this process has imported torch, so ranks have it ahead, and torch adds filters"
    if reason:
        pytest.skip(reason)
    seen = looked(way)[1]["seen"][name]
    if name == "open_files" and way == "call":
        assert list(seen.values()) == _CHANNEL
    else:
        assert seen == alone["seen"][name]


@pytest.mark.parametrize("way", WAYS)
def test_ranks_of_a_function_draw_apart(looked, way):
    first, second = looked(way)
    assert first["random"] != second["random"]


@pytest.mark.parametrize("name", ["torch", "randperm", "numpy", "python", "seed"])
@pytest.mark.parametrize("way", ["run", "call"])
def test_ranks_and_calls_draw_apart(drawn, way, name):
    values = [str(one[name]) for one in drawn(way)]
    assert len(set(values)) == len(values), values


@pytest.fixture(scope="module")
def drawn(call) -> Callable[[str], list[Any]]:
    """What two calls on two ranks drew."""
    known: dict[str, list[Any]] = {}

    def draw(way: str) -> list[Any]:
        if way not in known:
            import functions_with_torch as with_torch

            known[way] = [*call(way, with_torch.draw), *call(way, with_torch.draw)]
        return known[way]

    return draw


@pytest.mark.parametrize("way", WAYS)
def test_what_a_function_leaves_open_is_written(call, tmp_path, way):
    assert call(way, functions.leave_open, str(tmp_path)) == ["returned", "returned"]
    expected = {
        **{f"left-{rank}.txt": "left open" for rank in range(2)},
        **{f"atexit-{rank}.txt": "atexit" for rank in range(2)},
    }

    def left() -> dict[str, str]:
        return {path.name: path.read_text() for path in tmp_path.iterdir()}

    if way == "call":  # the answer comes before the process ends: nobody waits for that
        wait_for(lambda: left() == expected, f"all is written: {left()}", 10.0)
    assert left() == expected


@pytest.mark.parametrize("way", WAYS)
def test_a_function_that_exits_well(call, way):
    assert call(way, functions.leave_with, 0) == [None, None]


@pytest.mark.parametrize("way", WAYS)
def test_the_text_of_an_exit_is_told(call, way):
    with pytest.raises(wl.RankFailed, match="no data in"):
        call(way, functions.leave_with, "no data in ./data")
