"""DeepSpeed on two ranks: strategy deepspeed at each ZeRO stage, with a resume, and a DeepSpeed script.

Skipped where DeepSpeed is not installed: `pip install deepspeed`, built with DS_BUILD_OPS=0. Without a GPU,
it compiles its shared-memory collectives at first use. That takes minutes and needs a C++ compiler.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import windlass as wl

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed"
    ),
]
SCRIPT = Path(__file__).parent / "deepspeed_script.py"
WORKER = f"{Path(__file__).parent / 'trainer_ranks.py'}::run_deepspeed"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict]:
    folder = tmp_path_factory.mktemp("deepspeed")
    return wl.run(WORKER, (str(folder),), procs=2, quiet=True, timeout_s=500)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_it_trains_as_ddp_does_and_resumes(ranks, stage):
    for rank in ranks:
        whole, begun, resumed = (rank[f"{part}-{stage}"] for part in ("whole", "begun", "resumed"))
        assert whole["losses"] == pytest.approx(rank["ddp"]["losses"], abs=1e-5)
        assert begun["end"] == 5
        assert list(resumed["losses"]) == list(range(6, 13))
        assert {**begun["losses"], **resumed["losses"]} == pytest.approx(whole["losses"], abs=1e-6)
        assert resumed["validations"][-1] == pytest.approx(whole["validations"][-1], abs=1e-6)


def test_deepspeed_script_runs_unchanged(tmp_path):
    command = [sys.executable, "-m", "windlass.cli.main", "run", "--procs", "2", str(SCRIPT)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for rank in range(2):
        assert f"rank {rank} of 2 learned in 3 steps" in ran.stdout
