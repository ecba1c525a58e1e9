"""`windlass conformance` as users run it, from a wheel in their own folder: errors, rows and exit codes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from wheels import make_python

from windlass.conformance import case_run
from windlass.engines.archives import _sources

ROOT = Path(__file__).parents[2]
CASES = ROOT / "src/windlass/conformance/cases"
QUICK = "cannot_be_sent"  # a case that starts no job


def run(*words, python=sys.executable, code="", cwd=None):
    """Run `windlass conformance` after some code in its process."""
    start = f"import sys\n{code}\nfrom windlass.cli.main import main\nsys.exit(main())"
    command = [python, "-c", start, "conformance", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


@pytest.fixture
def cases(tmp_path, monkeypatch):
    """Write a suite with one case for each outcome, and return the code that selects it."""
    folder = tmp_path / "cases"
    folder.mkdir()
    (folder / "test_ends.py").write_text(
        "import pytest\n"
        "pytestmark = pytest.mark.engine_matters\n"
        "def test_holds(on): assert on == 'local'\n"
        "def test_breaks(on): assert on == 'another', 'it is another'\n"
        "def test_lacks(on): pytest.skip('there is no moon')\n"
        "@pytest.mark.cluster_only('it has no pods')\n"
        "def test_pods(on): raise AssertionError\n"
        "def test_interrupted(on): raise KeyboardInterrupt\n"
        "def test_terminated(on): import signal; signal.raise_signal(signal.SIGTERM)\n"
    )
    (folder / "conftest.py").write_text(
        "import pytest\n"
        "def pytest_configure(config):\n"
        "    for mark in ('engine_matters', 'cluster_only(why)'):\n"
        "        config.addinivalue_line('markers', mark)\n"
        "@pytest.fixture\n"
        "def on(request): return request.param\n"
    )
    return f"from windlass.conformance import case_run; case_run.CASES = {str(folder)!r}"


def test_each_outcome_is_a_row_and_a_failure_sets_the_exit_code(cases):
    ran = run("-e", "local", "-k", "not interrupted and not terminated", "--json", code=cases)
    rows = {row["case"]: row for row in json.loads(ran.stdout)}
    assert {name.partition("::")[2]: row["result"] for name, row in rows.items()} == {
        "test_holds": "passed",
        "test_breaks": "failed",
        "test_lacks": "skipped",
        "test_pods": "skipped",
    }
    assert "it is another" in rows["test_ends::test_breaks"]["reason"]
    assert rows["test_ends::test_lacks"]["reason"] == "there is no moon"
    assert rows["test_ends::test_pods"]["reason"] == "it has no pods"
    assert "def test_breaks" in ran.stderr
    assert re.search(r"windlass: 1 passed, 1 failed, 2 skipped in \d+ s\n$", ran.stderr)
    assert ran.returncode == 1


def test_the_table(cases):
    ran = run("-e", "local", "-k", "holds or lacks", code=cases)
    head, *rows = [line.split() for line in ran.stdout.splitlines()]
    assert head == ["CASE", "RESULT", "SECONDS", "REASON"]
    assert all(re.fullmatch(r"\d+\.\d", row.pop(2)) for row in rows)
    assert rows == [
        ["test_ends::test_holds", "passed"],
        ["test_ends::test_lacks", "skipped", "there", "is", "no", "moon"],
    ]
    assert (ran.returncode, ran.stderr.splitlines()[0]) == (0, "windlass: 2 cases")


@pytest.mark.parametrize("how", ["interrupted", "terminated"])
def test_interrupt_prints_the_rows_so_far(cases, how):
    ran = run("-e", "local", "-k", f"holds or {how}", "--json", code=cases)
    assert ran.returncode == 130
    assert [row["result"] for row in json.loads(ran.stdout)] == ["passed"]


@pytest.mark.parametrize(
    ("words", "says", "code"),
    [
        (["-e", "moon"], "unknown engine 'moon'", 2),
        (["-e", "statefulset"], "statefulset", 2),
        (["-e", "local", "-k", "no_such_case"], "no case matches 'no_such_case'", 2),
        (["-e", "local", "--shared-claim", "x"], "--shared-claim is only for clusters", 2),
        (["-e", "kubernetes"], "image", 2),
    ],
)
def test_invalid_run_is_one_error(words, says, code):
    ran = run(*words)
    assert says in ran.stderr
    assert "hint: " in ran.stderr
    assert (ran.returncode, ran.stdout) == (code, "")


def test_missing_pytest_is_an_error_with_a_hint():
    ran = run("-e", "local", code="sys.modules['pytest'] = None")
    assert ran.returncode == 3
    assert "pip install 'windlass[conformance]'" in ran.stderr


def test_from_a_wheel_in_an_empty_folder(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    others = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=others)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = f"from setuptools.build_meta import build_wheel; build_wheel({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    python = make_python(tmp_path / "python", wheel)
    (empty := tmp_path / "empty").mkdir()
    ran = run("-e", "local", "-k", f"{QUICK} or rank_order", "--json", python=python, cwd=empty,
              code=f"import windlass; assert windlass.__file__.startswith({str(tmp_path)!r})")  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert [row["result"] for row in json.loads(ran.stdout)] == ["passed"] * 2
    assert os.listdir(empty) == []


def test_conformance_is_not_imported_otherwise():
    code = "import sys, windlass, windlass.cli.main; windlass.run; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not [name for name in ran.stdout.split() if "conformance" in name or "pytest" in name]
    assert not [name for name, _ in _sources() if "conformance" in name]


def test_cases_are_in_the_package():
    assert Path(case_run.CASES) == CASES
    assert len(list(CASES.glob("test_*.py"))) >= 10
