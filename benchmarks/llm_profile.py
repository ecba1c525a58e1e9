"""Profile a training step by kind of kernel. `llm.py --only profile` runs it too.

    python benchmarks/llm_profile.py bf16|fp8|lora|lora-fp8 [--shape 1b] [--json FILE]

It trains a model with random weights for some steps like the recipe, but without files, data and logs. Two
of the steps are profiled. The last line is a JSON object. Kernels are grouped by name patterns. Names differ
between CUDA versions, so the output also lists kernels by their own names.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from llm_work import LENGTH, SHAPES, make_config

KINDS = ("bf16", "fp8", "lora", "lora-fp8")
_STEPS = 6
_PROFILED = 2  # number of profiled steps
_PATTERNS = (  # the first match decides
    ("compiled", r"^triton_"),
    ("attention", r"flash|fmha|cudnn|sdpa|attention"),
    ("gate", r"_forward_kernel|_backward_kernel"),
    ("loss", r"_score_kernel"),
    ("float8", r"_measure_kernel|_write_kernel"),
    ("matmul", r"gemm|cutlass|nvjet|xmma|cublas|splitK|gemv"),
    ("optimizer", r"[Aa]dam|multi_tensor_apply|foreach"),
    ("copies", r"[Mm]emcpy|[Mm]emset|copy|Cat"),
)


def build(kind: str, shape: str, device: torch.device) -> Any:
    """Build the model as the recipe trains it."""
    from windlass.recipes.llm.llama import Llama
    from windlass.recipes.llm.llama_config import read_llama_config
    from windlass.recipes.llm.llm_options import read_llm_options
    from windlass.recipes.llm.model_build import prepare_layers

    is_lora = kind.startswith("lora")
    options = replace(
        read_llm_options(["--model", "random", "--lora", "16" if is_lora else "0"], {}),
        fp8=kind.endswith("fp8"),
        compile=device.type == "cuda",
    )
    with torch.device(device):
        model = Llama(read_llama_config(make_config(shape)))
    model.init_weights(seed=0)
    model.model.compute_dtype = torch.bfloat16
    if is_lora:
        model.to(torch.bfloat16)
    prepare_layers(model, options, say=print)
    model.to(device)
    return model


class Training:
    """Training steps over random tokens, in two micro-batches."""

    def __init__(self, model: Any, *, rows: int, length: int, device: torch.device) -> None:
        self._model = model
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._optimizer = torch.optim.AdamW(self._weights, lr=2e-5, fused=device.type == "cuda")
        size = (2, rows, length)
        self._tokens = torch.randint(0, model.config.vocab_size, size, device=device)

    def step(self) -> None:
        from windlass.train.trainer.step_update import clip_gradients, step_if_finite

        for tokens in self._tokens:
            loss = self._model(tokens, labels=tokens.roll(-1, 1), scale=1 / self._tokens.numel())
            loss.backward()
        step_if_finite(self._optimizer, clip_gradients(self._weights, 1.0))
        self._optimizer.zero_grad(set_to_none=True)

    @property
    def num_tokens(self) -> int:
        return self._tokens.numel()


def profile(kind: str, *, shape: str, rows: int, length: int) -> dict[str, Any]:
    """Measure a step, and profile its kernels."""
    from windlass.train.trainer.meters import measure_matmul_rate

    device = torch.device("cuda")
    training = Training(build(kind, shape, device), rows=rows, length=length, device=device)
    for _ in range(2):
        training.step()
    times = [torch.cuda.Event(enable_timing=True) for _ in range(_STEPS + 1)]
    times[0].record()
    for time in times[1:]:
        training.step()
        time.record()
    torch.cuda.synchronize()
    step_ms = statistics.median(a.elapsed_time(b) for a, b in pairwise(times))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        for _ in range(_PROFILED):
            training.step()
        torch.cuda.synchronize()
    kernels = {
        event.key: (event.device_time_total / 1000 / _PROFILED, event.count // _PROFILED)
        for event in seen.key_averages()
    }
    spans = sorted(
        (event.time_range.start, event.time_range.end, event.name)
        for event in seen.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    return {
        "kind": kind,
        "step_ms": step_ms,
        "tokens_per_s": training.num_tokens / step_ms * 1000,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        "matmul_tflops": measure_matmul_rate(device) / 1e12,
        "groups": {**group(kernels), "idle": measure_idle(spans) / _PROFILED},
        "gaps": list_gaps(spans),
        "kernels": sorted(
            ([round(ms, 3), count, name[:160]] for name, (ms, count) in kernels.items()),
            reverse=True,
        )[:80],
    }


def group(kernels: dict[str, tuple[float, int]]) -> dict[str, float]:
    """Return milliseconds by kind of kernel, largest first."""
    sums: dict[str, float] = defaultdict(float)
    for name, (ms, _) in kernels.items():
        sums[find_kind(name)] += ms
    return dict(sorted(sums.items(), key=lambda pair: -pair[1]))


def measure_idle(spans: list[tuple[float, float, str]]) -> float:
    """Return the milliseconds between the first and the last kernel in which none ran."""
    return sum(gap for gap, _ in _find_gaps(spans)) / 1000


def list_gaps(spans: list[tuple[float, float, str]]) -> list[tuple[float, int, str]]:
    """Return the gaps by surrounding kernels: total milliseconds, count and names."""
    sums: dict[str, list[float]] = defaultdict(list)
    for gap, between in _find_gaps(spans):
        sums[between].append(gap)
    rows = [
        (sum(gaps) / 1000 / _PROFILED, len(gaps) // _PROFILED, between)
        for between, gaps in sums.items()
    ]
    return sorted(rows, reverse=True)[:12]


def _find_gaps(spans: list[tuple[float, float, str]]) -> list[tuple[float, str]]:
    """Return each gap in microseconds, and the kernels on both sides of it."""
    gaps = []
    _, reached, before = spans[0]
    for start, end, name in spans[1:]:
        if start > reached:
            gaps.append((start - reached, f"{before[:40]} -> {name[:40]}"))
        if end > reached:
            reached, before = end, name
    return gaps


def find_kind(kernel: str) -> str:
    for kind, pattern in _PATTERNS:
        if re.search(pattern, kernel):
            return kind
    return "others"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    seen = profile(options.kind, shape=options.shape, rows=options.rows, length=options.length)
    if options.json:
        options.json.write_text(json.dumps(seen))
    for ms, count, name in seen["kernels"][:45]:
        sys.stdout.write(f"{ms:9.2f} ms {count:6d}  {name}\n")
    sys.stdout.write(json.dumps({key: seen[key] for key in seen if key != "kernels"}) + "\n")


if __name__ == "__main__":
    main()
