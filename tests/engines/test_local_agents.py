"""Agents started early: only when the guess is safe, used if it fits, and harmless otherwise."""

from __future__ import annotations

import subprocess
import sys

import pytest
from waits import find_leftovers, wait_for

import windlass as wl
from windlass.engines.local.local_agents import make_guess


@pytest.fixture(autouse=True)
def scripts(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("import os, torch\nprint(torch.get_num_threads())\n")
    (tmp_path / "early.py").write_text("import os\nos.environ['OMP_X'] = '1'\nimport torch\n")
    (tmp_path / "reads.py").write_text("import os\nx = os.environ['RANK']\nimport torch\n")
    (tmp_path / "plain.py").write_text("# import torch\nprint('no torch')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.mark.parametrize(
    ("words", "guess"),
    [
        ("train.py", ["torch"]),
        ("train.py::main", ["torch"]),
        ("train.py --procs 2 --nodes 3", ["torch", "OMP_NUM_THREADS=1"]),
        ("--procs=4 train.py", ["torch", "OMP_NUM_THREADS=1"]),
        ("train.py --procs 1 -- --env x", ["torch"]),
        ("train.py --detach --restarts 3 --name x", ["torch"]),
        ("early.py", None),
        ("reads.py", ["torch"]),
        ("plain.py", None),
        ("missing.py", None),
        ("train.py --env A=1", None),
        ("train.py --python /usr/bin/python3", None),
        ("train.py --preload numpy", None),
        ("train.py --start spawn", None),
        ("train.py --start=spawn", None),
        ("train.py -e local", None),
        ("train.py --engine=kubernetes", None),
        ("train.py --dry-run", None),
        ("train.py --gpus 2", None),
        ("--gpus=2 train.py --pretend-gpus", None),
        ("train.py --help", None),
        ("-m train", None),
        ("-- python train.py", None),
        ("", None),
    ],
)
def test_guess(words, guess):
    assert make_guess(words.split()) == guess


def test_threads_set_by_the_user_are_not_guessed_over(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert make_guess(["train.py", "--procs", "2"]) == ["torch"]


def _windlass(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "windlass.cli.main", "run", *words],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_correct_guess_is_used():
    wl.run(lambda: None, quiet=True)  # the archive exists from now on
    ran = _windlass("train.py", "--procs", "2")
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.split()) == ["1", "1", "[0/0]", "[0/1]"]


def test_wrong_guess_is_corrected(tmp_path):
    """A project file overrides the settings that the command line suggested."""
    wl.run(lambda: None, quiet=True)
    (tmp_path / "windlass.toml").write_text('procs = 2\nenv = { OMP_NUM_THREADS = "2" }\n')
    ran = _windlass("train.py")
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.split()) == ["2", "2", "[0/0]", "[0/1]"]


def test_bad_usage_leaves_no_agent_behind(home):
    wl.run(lambda: None, quiet=True)
    ran = _windlass("train.py", "--nodes", "0")
    assert ran.returncode == 2
    wait_for(lambda: not find_leftovers(home), "the agent that was started ahead has ended")
