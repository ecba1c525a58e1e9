"""Launcher and function of the guide, verbatim except for the import. torchvision is a stand-in."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

GUIDE = Path(__file__).parent / "guide"
GUIDE_JOB = "pytorch-fashion-mnist-example"


def run_guide(project: Path) -> str:
    """Run the guide as a reader would and check its documented output. Return stderr."""
    shutil.copytree(GUIDE, project)
    command = [sys.executable, "main_launcher.py"]
    ran = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=170)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(f"TrainJob '{GUIDE_JOB}' created. Status: Created\n"), ran.stdout
    for line in ("rank 0 of 2 on device cpu.", "rank 1 of 2 on device cpu.", "Epoch 3/3 | Loss: "):
        assert line in ran.stdout
    assert "Training complete!" in ran.stdout
    assert ran.stdout.endswith("\nFinal job status: Succeeded\nJob completed successfully!\n")
    return ran.stderr
