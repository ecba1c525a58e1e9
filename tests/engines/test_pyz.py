"""The agent's archive: one small file, the same bytes every time, that needs nothing else."""

from __future__ import annotations

import subprocess
import sys

from windlass.engines.pyz import agent_archive, build_archive


def test_it_is_small():
    assert len(build_archive()) <= 150 * 1024


def test_equal_sources_give_equal_bytes(tmp_path):
    assert build_archive() == build_archive()
    first = agent_archive(tmp_path)
    assert agent_archive(tmp_path) == first
    assert first.read_bytes() == build_archive()


def test_it_runs_without_site_packages(tmp_path):
    path = agent_archive(tmp_path)
    answer = subprocess.run([sys.executable, "-I", "-S", path], capture_output=True, text=True)
    assert answer.returncode == 2
    assert "agent.pyz agent PLAN.json" in answer.stderr


def test_report_works_where_only_the_archive_is(tmp_path):
    path = agent_archive(tmp_path)
    code = "import windlass as wl\nwl.report(step=1)\ntry:\n    wl.run\nexcept AttributeError as e: print(e)"
    answer = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(path)!r})\n{code}"],
        capture_output=True,
        text=True,
    )
    assert "windlass.run is for clients" in answer.stdout, answer.stderr
