"""Code blocks of the documentation, which are run: Python blocks whole, console blocks line by line.

    ```python                run, must not fail
    ```python file=train.py  written to a file first and not run, likewise toml
    ```console exit=1        runs each `$ ` line, the last one must exit with that code, all others with 0

Blocks of any other kind are not run. In the README, each line of an `sh` block is a command, and is run too.
The guide to Kubernetes runs on a cluster, in a separate namespace. Packages that pip installs come from the
page itself, and go to a folder of the test.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from windlass.recipes.llm.llm_options import read_llm_options
from windlass.recipes.llm.model_files import check_files

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
RUN = ("python", "console", "toml")


def _blocks(page: Path) -> list[tuple[str, dict[str, str], str]]:
    return [
        (kind, dict(word.split("=", 1) for word in options.split()), body)
        for kind, options, body in BLOCK.findall(page.read_text())
        if kind in RUN and (kind != "toml" or "file=" in options)
    ]


ON_A_CLUSTER = ROOT / "docs/guides/kubernetes.md"


NEEDS = {  # modules that a page is about, and that may be missing
    ROOT / "docs/guides/llm.md": "peft",
    ROOT / "docs/guides/monarch.md": "monarch.actor",
}


def _make_environment(folder: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    site = str(folder.with_name("site"))
    pip = {"PIP_TARGET": site, "PYTHONPATH": site, "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1"}
    # pip reads this variable inverted, so this disables isolation
    pip["PIP_NO_BUILD_ISOLATION"] = "false"
    return {**os.environ, **pip, "PATH": path, "OMP_NUM_THREADS": "1"}  # their models are tiny


def _run(command: list[str], expected: int, folder: Path) -> None:
    ran = subprocess.run(
        command,
        cwd=folder,
        env=_make_environment(folder),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == expected, f"{command}\n{ran.stdout}\n{ran.stderr}"


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if _blocks(p) and p != ON_A_CLUSTER],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_blocks_run(page, tmp_path):
    if page in NEEDS:
        pytest.importorskip(NEEDS[page])
    _run_blocks(page, tmp_path)


@pytest.mark.cluster
@pytest.mark.timeout(400)
def test_the_guide_to_kubernetes_runs(tmp_path, monkeypatch, space):
    for name, value in space.settings.items():
        monkeypatch.setenv(name, value)
    _run_blocks(ON_A_CLUSTER, tmp_path)


def _run_blocks(page, tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    for number, (kind, options, body) in enumerate(_blocks(page)):
        if "file" in options:
            (folder / options["file"]).parent.mkdir(exist_ok=True)
            (folder / options["file"]).write_text(body)
        elif kind == "python":
            script = folder / f"block_{number}.py"
            script.write_text(body)
            _run([sys.executable, str(script)], 0, folder)
        else:
            lines = [line[2:] for line in body.splitlines() if line.startswith("$ ")]
            assert lines, f"a console block without a command in {page}"
            for line in lines:
                is_last = line is lines[-1]
                _run(["sh", "-c", line], int(options.get("exit", "0")) if is_last else 0, folder)


README = ROOT / "README.md"
SH = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Commands of the README that only run on some machines, and what the README says they need.
NEEDS_MORE = {
    "windlass run -m windlass.recipes.train_framework": "# needs 8 GPUs and the Hugging Face Hub",
    "windlass run train.py --nodes 4 -e kubernetes": "# needs a cluster",
}
# Commands that set up this checkout. The test asks `make` what they would do.
OF_THE_CHECKOUT = ("make demo", "make check", "make test", ". .venv/bin/activate")


def _read_commands() -> list[str]:
    return [line for body in SH.findall(README.read_text()) for line in body.splitlines() if line]


def _is_any(command: str, starts: Iterable[str]) -> bool:
    return any(command.startswith(start) for start in starts)


def _write_files(folder: Path) -> None:
    for kind, options, body in _blocks(README):
        if kind == "python" and "file" in options:
            (folder / options["file"]).write_text(body)


def test_readme_marks_commands_with_requirements():
    commands = _read_commands()
    for start, mark in NEEDS_MORE.items():
        assert [mark in command for command in commands if command.startswith(start)] == [True]
    marked = [command for command in commands if "# needs" in command]
    assert all(_is_any(command, NEEDS_MORE) for command in marked)
    assert all(any(c.startswith(start) for c in commands) for start in OF_THE_CHECKOUT)


def test_make_targets_of_the_readme_exist():
    for target in ("demo", "check", "test"):
        asked = subprocess.run(
            ["make", "-n", target], cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        assert asked.returncode == 0, asked.stderr


@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_command_of_the_readme_works_as_written(tmp_path):
    _write_files(tmp_path)
    for command in _read_commands():
        if not _is_any(command, (*NEEDS_MORE, *OF_THE_CHECKOUT)):
            _run(["sh", "-c", command], 0, tmp_path)


def test_files_of_the_readmes_language_model_are_checked(tmp_path, monkeypatch):
    """The command needs GPUs and the hub. This checks its flags and files only."""
    monkeypatch.chdir(tmp_path)
    before, command = [c for c in _read_commands() if "train.jsonl" in c]
    _run(["sh", "-c", before], 0, tmp_path)
    words = shlex.split(command.partition(" -- ")[2].partition("#")[0])
    options = read_llm_options(words, {})
    check_files(options)
    assert json.loads(Path(options.train_file).read_text().splitlines()[0])["text"]


def test_cluster_command_of_the_readme_is_valid(tmp_path):
    _write_files(tmp_path)
    [command] = [c for c in _read_commands() if "-e kubernetes" in c]
    _run(["sh", "-c", command.replace(" run ", " run --dry-run ", 1)], 0, tmp_path)


def test_packages_on_the_page_match_the_examples():
    shown = {
        options["file"]: body
        for _, options, body in _blocks(ROOT / "docs/extending.md")
        if "/" in options.get("file", "")
    }
    plugins = ROOT / "examples/plugins"
    files = [path for path in plugins.glob("*/*") if path.suffix in (".py", ".toml")]
    assert shown == {str(path.relative_to(plugins)): path.read_text() for path in files}
    for package in plugins.iterdir():  # an engine in a package takes at most this much code
        assert sum(len(path.read_text().splitlines()) for path in package.glob("*.py")) <= 60


def test_guide_is_covered():
    assert any(kind == "console" for kind, _, _ in _blocks(ROOT / "docs/guides/local.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_have_targets(page):
    for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page}: {target}"


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs/decisions").glob("*.md")), ids=lambda page: page.name
)
def test_decisions_link_to_official_pages(page):
    assert "pypi.org" not in page.read_text()
