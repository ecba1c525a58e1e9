"""What a script finds when it starts is what it finds under `python` and `torchrun`.

One test an observation: `project/start.py` and `project/observations.py` make them, and each of their names
is a test here.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from parity.launches import PROJECT, Launches, Ran

SCRIPT = re.findall(r'^    "(\w+)": ', (PROJECT / "start.py").read_text(), re.MULTILINE)
PROCESS = re.findall(r"@observed\ndef (\w+)", (PROJECT / "observations.py").read_text())

# Each with its reason. All else must be equal.
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


def look(launch: Launches, side: str, way: str) -> dict[str, Any]:
    """What rank 0 finds, or the last rank where there are several."""
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
    """Two ranks that import torch, and one restart."""
    if side == "python":
        return launch("torchrun", "start_torch.py", procs=2, options=("--max-restarts", "1"))
    return launch("windlass", "start_torch.py", procs=2, options=("--restarts", "1"))


@pytest.mark.parametrize("way", ["script", "spawn", "options", "torch"])
@pytest.mark.parametrize("name", [*SCRIPT, *PROCESS])
def test_a_script_finds(launch, way, name):
    if name in DELIBERATE:
        pytest.skip(DELIBERATE[name])
    if way == "torch" and name == "torch_is_imported_only_if_asked_for":
        pytest.skip(
            "asked for: the source of the script leads to torch, so it is imported before the fork"
        )
    if way == "torch" and name in ("original_arguments", "flags", "stderr_buffering"):
        pytest.skip(
            "torchrun starts its ranks with `python -u`, which nobody who runs a script has typed"
        )
    assert look(launch, "windlass", way)[name] == look(launch, "python", way)[name]


def test_a_line_is_out_as_soon_as_it_is_printed(launch):
    """The one deliberate difference: `DELIBERATE` says why."""
    assert look(launch, "python", "script")["stdout_buffering"] == [False, False]
    assert look(launch, "windlass", "script")["stdout_buffering"] == [True, False]


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
def test_a_script_that_is_called_by_another_path_finds(launch, script, name):
    sides = [launch(side, script, "x").seen("start-0") for side in ("python", "windlass")]
    assert sides[1][name] == sides[0][name]


def test_a_path_that_starts_without_the_scripts_folder(launch):
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
def test_a_module_finds(launch, name):
    sides = [launch(side, "-m", "pkg", "a", "b").seen("module") for side in ("python", "windlass")]
    assert sides[1][name] == sides[0][name]


@pytest.mark.parametrize("name", ["name", "file", "package", "argv", "path", "beside"])
def test_a_folder_with_a_main_finds(launch, name):
    sides = [launch(side, "folder", "a").seen("folder") for side in ("python", "windlass")]
    assert sides[1][name] == sides[0][name]


def test_files_beside_the_script_win_over_the_library(launch):
    sides = [launch(side, "shadow/main.py") for side in ("python", "windlass")]
    assert sides[0].text("out") == "[True, True, True]\n"
    assert sides[1].text("out") == sides[0].text("out")
