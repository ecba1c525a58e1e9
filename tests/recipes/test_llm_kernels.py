"""The recipes' Triton kernels: all of kernel_checks.py, on a GPU where there is one, else interpreted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

CHECKS = Path(__file__).with_name("kernel_checks.py")


def test_kernels_compute_what_plain_pytorch_does():
    pytest.importorskip("triton")
    environ = dict(os.environ)
    if not torch.cuda.is_available():
        environ["TRITON_INTERPRET"] = (
            "1"  # read when kernels are defined: hence a process of its own
        )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CHECKS)],
        env=environ,
        capture_output=True,
        text=True,
        cwd=CHECKS.parents[2],
    )
    assert done.returncode == 0, done.stdout + done.stderr
