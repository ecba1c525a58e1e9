"""Functions behave the same under `wl.run`, `wl.submit`, a warm call and plain Python."""

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

# each with its reason
FUNCTIONS_ONLY = {
    "depth_of_recursion": "a function always has its caller's frames below it",
}
CALLS_ONLY = {
    "warning_options": "a compute has torch imported for every call, and torch adds filters",
}
# The socket that carries the call and its answer. Children do not inherit it.
_CHANNEL = ["socket"]
WAYS = ["run", "submit", "call"]


@pytest.fixture(scope="module")
def call(home) -> Any:
    """Return a function that calls a function of the project in one of the ways, on two ranks."""
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
    """Return the observations of the function when Python calls it."""
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
def observed(call) -> Callable[[str], list[Any]]:
    known: dict[str, list[Any]] = {}

    def observe(way: str) -> list[Any]:
        if way not in known:
            known[way] = json.loads(json.dumps(call(way, functions.look)))
        return known[way]

    return observe


@pytest.mark.parametrize("name", PROCESS)
@pytest.mark.parametrize("way", WAYS)
def test_function_observes(alone, observed, way, name):
    reason = {**DELIBERATE, **FUNCTIONS_ONLY, **(CALLS_ONLY if way == "call" else {})}.get(name)
    if name == "warning_options" and "torch" in sys.modules:
        reason = "this process has imported torch, so ranks have it ahead, and torch adds filters"
    if reason:
        pytest.skip(reason)
    seen = observed(way)[1]["seen"][name]
    if name == "open_files" and way == "call":
        assert list(seen.values()) == _CHANNEL
    else:
        assert seen == alone["seen"][name]


@pytest.mark.parametrize("way", WAYS)
def test_ranks_of_a_function_draw_different_numbers(observed, way):
    first, second = observed(way)
    assert first["random"] != second["random"]


@pytest.mark.parametrize("name", ["torch", "randperm", "numpy", "python", "seed"])
@pytest.mark.parametrize("way", ["run", "call"])
def test_ranks_and_calls_draw_different_numbers(drawn, way, name):
    values = [str(one[name]) for one in drawn(way)]
    assert len(set(values)) == len(values), values


@pytest.fixture(scope="module")
def drawn(call) -> Callable[[str], list[Any]]:
    """Return a function that returns the numbers drawn by two calls on two ranks."""
    known: dict[str, list[Any]] = {}

    def draw(way: str) -> list[Any]:
        if way not in known:
            import functions_with_torch as with_torch

            known[way] = [*call(way, with_torch.draw), *call(way, with_torch.draw)]
        return known[way]

    return draw


@pytest.mark.parametrize("way", WAYS)
def test_open_files_of_a_function_are_written(call, tmp_path, way):
    assert call(way, functions.leave_open, str(tmp_path)) == ["returned", "returned"]
    expected = {
        **{f"left-{rank}.txt": "left open" for rank in range(2)},
        **{f"atexit-{rank}.txt": "atexit" for rank in range(2)},
    }

    def left() -> dict[str, str]:
        return {path.name: path.read_text() for path in tmp_path.iterdir()}

    if way == "call":  # the answer arrives before the process exits, which is not waited for
        wait_for(lambda: left() == expected, f"all is written: {left()}", 10.0)
    assert left() == expected


@pytest.mark.parametrize("way", WAYS)
def test_function_that_exits_with_0(call, way):
    assert call(way, functions.leave_with, 0) == [None, None]


@pytest.mark.parametrize("way", WAYS)
def test_text_of_an_exit_is_in_the_error(call, way):
    with pytest.raises(wl.RankFailed, match="no data in"):
        call(way, functions.leave_with, "no data in ./data")
