"""A script finds the same state at its start as under `python` and `torchrun`.

There is one test per observation. `project/start.py` and `project/observations.py` make the observations, and
each name becomes a test here.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from parity.launches import PROJECT, Launches, Ran

SCRIPT = re.findall(r'^    "(\w+)": ', (PROJECT / "start.py").read_text(), re.MULTILINE)
PROCESS = re.findall(r"@observed\ndef (\w+)", (PROJECT / "observations.py").read_text())

# each with its reason, all others must be equal
DELIBERATE = {
    "stdout_buffering": "a rank's stdout goes out line by line, so that its log can be followed",
}
SAFE_PATH = {"PYTHONSAFEPATH": "1"}
OPTIONS = {
    "PYTHONOPTIMIZE": "1",
    "PYTHONHASHSEED": "7",
    "PYTHONWARNINGS": "once",
    "PYTHONIOENCODING": "latin-1:replace",
    "PYTHONPATH": "lib",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUTF8": "0",
    "PYTHONCOERCECLOCALE": "0",
    "LC_ALL": "C",
    "TZ": "Asia/Tokyo",
}


def observe(launch: Launches, side: str, way: str) -> dict[str, Any]:
    """Return the observations of rank 0, or of the last rank if there are several."""
    words = ("start.py", "--lr", "1e-3", "two words", "")
    if way == "script":
        return launch(side, *words).seen("start-0")
    if way == "spawn":
        options = ("--start", "spawn") if side == "windlass" else ()
        return launch(side, *words, options=options).seen("start-0")
    if way == "options":
        return launch(side, *words, env=OPTIONS).seen("start-0")
    assert way == "torch"
    return launch_with_torch(launch, side).seen("start-1")


def launch_with_torch(launch: Launches, side: str) -> Ran:
    """Launch two ranks that import torch, with one restart."""
    if side == "python":
        return launch("torchrun", "start_torch.py", procs=2, options=("--max-restarts", "1"))
    return launch("windlass", "start_torch.py", procs=2, options=("--restarts", "1"))


@pytest.mark.parametrize("way", ["script", "spawn", "options", "torch"])
@pytest.mark.parametrize("name", [*SCRIPT, *PROCESS])
def test_script_observes(launch, way, name):
    if name in DELIBERATE:
        pytest.skip(DELIBERATE[name])
    if way == "torch" and name == "torch_is_imported_only_if_asked_for":
        pytest.skip(
            "asked for: the source of the script leads to torch, so it is imported before the fork"
        )
    if way == "torch" and name in ("original_arguments", "flags", "stderr_buffering"):
        pytest.skip(
            "torchrun starts its ranks with `python -u`, which users of a script do not type"
        )
    assert observe(launch, "windlass", way)[name] == observe(launch, "python", way)[name]


def test_stdout_is_line_buffered(launch):
    """This is the one deliberate difference, explained in `DELIBERATE`."""
    assert observe(launch, "python", "script")["stdout_buffering"] == [False, False]
    assert observe(launch, "windlass", "script")["stdout_buffering"] == [True, False]


# -- paths ---------------------------------------------------------------------------------------

PATHS = [
    "main_name",
    "main_file",
    "main_spec",
    "main_loader",
    "main_package",
    "code_object",
    "arguments",
    "path",
    "working_folder",
    "relative_modules",
    "relative_packages",
    "data_beside_the_script",
    "relative_data",
    "source_of_a_function",
]


@pytest.mark.parametrize("script", ["sub/linked.py", "sub/../start.py", "./start.py"])
@pytest.mark.parametrize("name", PATHS)
def test_script_with_another_path_observes(launch, script, name):
    sides = [launch(side, script, "x").seen("start-0") for side in ("python", "windlass")]
    assert sides[1][name] == sides[0][name]


def test_safe_path(launch):
    paths = [
        launch(side, "start.py", env=SAFE_PATH).seen("start-0")["path"]
        for side in ("python", "windlass")
    ]
    assert paths[1] == paths[0]


@pytest.mark.parametrize(
    "name",
    [
        "name",
        "file",
        "package",
        "spec",
        "loader",
        "cached",
        "names",
        "argv",
        "path",
        "inner",
        "is_main",
    ],
)
def test_module_observes(launch, name):
    sides = [launch(side, "-m", "pkg", "a", "b").seen("module") for side in ("python", "windlass")]
    assert sides[1][name] == sides[0][name]


@pytest.mark.parametrize("name", ["name", "file", "package", "argv", "path", "beside"])
def test_folder_with_main_observes(launch, name):
    sides = [launch(side, "folder", "a").seen("folder") for side in ("python", "windlass")]
    assert sides[1][name] == sides[0][name]


def test_files_next_to_the_script_shadow_the_library(launch):
    sides = [launch(side, "shadow/main.py") for side in ("python", "windlass")]
    assert sides[0].text("out") == "[True, True, True]\n"
    assert sides[1].text("out") == sides[0].text("out")
