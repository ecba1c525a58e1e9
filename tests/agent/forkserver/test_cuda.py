"""Tests that need a GPU: forked ranks can use CUDA, results return on the CPU, and OOM is classified."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import windlass as wl


def _has_gpu() -> bool:
    code = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL).returncode == 0


pytestmark = pytest.mark.skipif(not _has_gpu(), reason="no GPU that torch can use here")


def test_tensors_return_on_the_cpu():
    def make():
        import torch

        leaf = torch.full((3,), float(os.environ["RANK"]), device="cuda", requires_grad=True)
        return {"leaf": leaf, "model": torch.nn.Linear(2, 2).cuda()}

    found = wl.run(make, procs=2, quiet=True)
    for rank, result in enumerate(found):
        assert result["leaf"].device.type == "cpu"
        assert result["leaf"].requires_grad
        assert result["leaf"].tolist() == [float(rank)] * 3
        assert {p.device.type for p in result["model"].parameters()} == {"cpu"}
        assert {type(p).__name__ for p in result["model"].parameters()} == {"Parameter"}


def test_nccl_in_forked_ranks():
    def reduce():
        import torch
        import torch.distributed as dist

        dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
        value = torch.ones(4, device="cuda")
        dist.all_reduce(value)
        dist.destroy_process_group()
        return float(value.sum())

    assert wl.run(reduce, procs=1, quiet=True) == [4.0]  # NCCL needs a GPU for each rank


def test_gpu_memory_is_classified_as_out_of_memory():
    def fill():
        import torch

        return torch.empty(1 << 50, device="cuda")

    job = wl.submit(fill)
    assert job.wait(120).verdict.kind.value == "out of memory"


def test_restart_after_cuda_was_used():
    def use():
        import sys

        import torch

        torch.ones(1, device="cuda").sum().item()
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            sys.exit(1)
        return torch.cuda.is_initialized()

    assert wl.run(use, procs=2, restarts=1, quiet=True) == [True, True]
