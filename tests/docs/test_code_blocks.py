"""Code blocks in the documentation are run: Python as it stands, console lines one by one.

    ```python                run; must not fail
    ```python file=train.py  written to a file first, not run
    ```console exit=1        each `$ ` line is run; the last one must end with that code, all others with 0

Blocks of any other kind are not run. The guide to Kubernetes is run on a cluster, in a namespace of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
RUN = ("python", "console")


def _blocks(page: Path) -> list[tuple[str, dict[str, str], str]]:
    return [
        (kind, dict(word.split("=", 1) for word in options.split()), body)
        for kind, options, body in BLOCK.findall(page.read_text())
        if kind in RUN
    ]


ON_A_CLUSTER = ROOT / "docs/guides/kubernetes.md"


NEEDS = {  # what a page is about, and need not be there
    ROOT / "docs/guides/llm.md": "peft",
    ROOT / "docs/guides/monarch.md": "monarch.actor",
}


def _environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}  # their models are tiny


def _run(command: list[str], expected: int, folder: Path) -> None:
    ran = subprocess.run(
        command, cwd=folder, env=_environment(), capture_output=True, text=True, timeout=120
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
        if kind == "python" and "file" in options:
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


def test_the_guide_is_covered():
    assert any(kind == "console" for kind, _, _ in _blocks(ROOT / "docs/guides/local.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page}: {target}"
