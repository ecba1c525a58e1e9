"""Results of the recipes' Triton kernels (kernel_checks.py), and their compilation for a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from windlass.recipes.llm import cross_entropy, fp8, gated_mlp

CHECKS = Path(__file__).with_name("kernel_checks.py")
BF16, FP32, FP8, INT = "*bf16", "*fp32", "*fp8e4nv", "i32"
SCORE = {"logits": BF16, "labels": "*i64", "losses": FP32, "scale": FP32, "width": INT}
FORWARD = {"both": BF16, "out": BF16, "width": INT}
BACKWARD = {"both": BF16, "outer": BF16, "grad": BF16, "width": INT}
LARGEST = {"by_row": FP32, "by_column": FP32}
SIZES = {"num_rows": INT, "num_columns": INT}
WRITTEN = {"values": FP8, "transposed": FP8}
SCALES = {"scales": FP32, "column_scales": FP32}
STRIDES = {"WIDTH": 8192, "UP_START": 16, "INNER_STRIDE": 2112, "INNER_GRAD_STRIDE": 2112}
KERNELS = {
    "score": (
        cross_entropy._score_kernel,
        SCORE,
        {"IGNORED": -100, "NEEDS_GRADIENT": True, "BLOCK": 4096},
    ),
    "gate": (gated_mlp._forward_kernel, FORWARD, {"BLOCK": 1024}),
    "gate backward": (gated_mlp._backward_kernel, BACKWARD, {"BLOCK": 1024}),
    "gate backward with adapters": (
        gated_mlp._gate_backward_kernel,
        {**dict.fromkeys(("both", "outer", "inner", "inner_grad", "grad"), BF16), "sums": FP32},
        {**STRIDES, "NUM_ROWS": 512, "STEP": 16, "BLOCK": 64, "RANK": 16, "RANKS": 64, "STAGES": 3},
    ),
    "measure": (
        fp8._measure_kernel,
        {"x": BF16, **LARGEST, **SIZES},
        {"NUM_ROWS": 512, "STEP": 32, "BLOCK": 256},
    ),
    "write": (
        fp8._write_kernel,
        {"x": BF16, **WRITTEN, **LARGEST, **SCALES, **SIZES},
        {"LARGEST": 448.0, "SMALLEST": 1e-30, "BLOCK": 128},
    ),
}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_kernels_match_plain_pytorch():
    pytest.importorskip("triton")
    environ = dict(os.environ)
    if not torch.cuda.is_available():
        environ["TRITON_INTERPRET"] = (
            "1"  # a separate process, because the variable is read when kernels are defined
        )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CHECKS)],
        env=environ,
        capture_output=True,
        text=True,
        cwd=CHECKS.parents[2],
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_compile_without_the_gpu(name, tmp_path, monkeypatch):
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel, types, constants = KERNELS[name]
    signature = {**types, **dict.fromkeys(constants, "constexpr")}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert compiled.asm["cubin"]
