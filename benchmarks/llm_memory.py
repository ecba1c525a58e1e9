"""Find the largest Llama that fine-tunes on this GPU: a fixed width and as many layers as fit.

It trains one row at a time. The first guess at the number of layers uses the bytes per weight. The measured
peak then shows whether more layers fit, and a model that does not fit is retried with fewer. Weights are
zeros in a sparse file. They need no disk space and no time, but as much memory as other weights.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from llm_runs import OutOfMemory, ours
from llm_work import make_config

_STEPS = 3
_TRIES = 4
_GUESS_SHARE = 0.93  # share of the memory that the bytes per weight may fill
_SPARE_GIB = 1.5  # reserve for the CUDA context and fragmentation


class Kind(NamedTuple):
    """A way to train, with its bytes per weight and its flags."""

    shape: str
    bytes_per_weight: float
    flags: tuple[str, ...] = ()


_KINDS = {
    "memory-full": Kind("8b", 16),
    "memory-8bit": Kind("8b", 10.1, ("--optimizer", "adamw8bit")),
    "memory-lora": Kind("70b", 2.05, ("--lora", "16")),
}
KINDS = tuple(_KINDS)


def find_largest(name: str, given: argparse.Namespace, precision: str) -> dict[str, Any]:
    """Return the largest number of layers that train with activation checkpointing, and the peak."""
    kind = _KINDS[name]
    if given.shape == "tiny":
        kind = kind._replace(shape="tiny")
    room = given.memory_gib or read_memory_gib()
    layer_gib = (count(kind.shape, 2) - count(kind.shape, 1)) * kind.bytes_per_weight * 1e9 / 2**30
    first_gib = count(kind.shape, 1) * kind.bytes_per_weight * 1e9 / 2**30
    layers = max(1, 1 + math.floor((_GUESS_SHARE * room - first_gib) / layer_gib))
    best: dict[str, Any] | None = None
    refused: list[int] = []
    for _ in range(_TRIES):
        try:
            seen = _try(name, given, kind, layers, precision)
        except OutOfMemory:
            refused.append(layers)
            if best is not None or layers == 1:
                break
            layers -= 1
            continue
        best = {**seen, "layers": layers, "billions": count(kind.shape, layers)}
        size = f"{best['billions']:.2f} billion weights fit, {seen['peak_gib']:.1f} GiB"
        print(f"  {name}: {layers} layers, {size}", flush=True)
        more = math.floor((room - _SPARE_GIB - seen["peak_gib"]) / layer_gib)
        if more < 1 or refused:
            break
        layers += more
    if best is None:
        raise RuntimeError(f"{name}: {refused} layers did not fit")
    return {**best, "refused": refused}


def _try(
    name: str, given: argparse.Namespace, kind: Kind, layers: int, precision: str
) -> dict[str, Any]:
    folder = given.work / f"zeros-{kind.shape}-{layers}"
    make_zeros(folder, make_config(kind.shape, layers=layers))
    try:
        return ours(
            f"{name}-{layers}",
            given,
            *("--checkpoint-activations", *kind.flags),
            model=folder,
            precision=precision,
            steps=_STEPS,
            log_every=1,
            batch=2,
            micro_batch=1,
        )
    finally:
        shutil.rmtree(folder)


def make_zeros(folder: Path, config: dict[str, Any]) -> None:
    """Create a model folder whose bfloat16 weights are a sparse file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**config, "torch_dtype": "bfloat16"}))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in list_weights(config):
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def list_weights(config: dict[str, Any]) -> list[tuple[str, list[int]]]:
    """Return the names and shapes of a model's weights, without the tied head."""
    import torch

    from windlass.recipes.llm.llama import Llama
    from windlass.recipes.llm.llama_config import read_llama_config

    with torch.device("meta"):
        weights = Llama(read_llama_config(config)).state_dict()
    return [(name, list(w.shape)) for name, w in weights.items() if name != "lm_head.weight"]


def count(shape: str, layers: int) -> float:
    """Return the number of weights in billions."""
    weights = list_weights(make_config(shape, layers=layers))
    return sum(math.prod(sizes) for _, sizes in weights) / 1e9


def read_memory_gib() -> float:
    """Return the GPU's memory, measured in a separate process."""
    code = "import torch; print(torch.cuda.mem_get_info()[1] / 2**30 if torch.cuda.is_available() else 0)"
    if not (room := float(subprocess.check_output([sys.executable, "-c", code], text=True))):
        raise RuntimeError(
            "this machine has no GPU\nhint: pass the memory to assume with --memory-gib"
        )
    return room
