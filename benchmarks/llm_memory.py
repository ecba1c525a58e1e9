"""The largest Llama that fine-tunes on this GPU: the width of an 8B model, and as many layers as fit.

The peak of memory grows by the same amount with each layer, so two small models tell how many will fit; that
many are then tried, and fewer if they do not. Weights are zeros in a file with a hole: they take no disk and
no time, and as much memory as others.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from llm_runs import OutOfMemory, ours
from llm_work import make_config

_STEPS = 3
_PROBES = (4, 8)  # layers
_TRIES = 4
_KINDS: dict[str, tuple[str, ...]] = {
    "memory-full": (),
    "memory-8bit": ("--optimizer", "adamw8bit"),
    "memory-lora": ("--lora", "16"),
}
KINDS = tuple(_KINDS)


def find_largest(name: str, given: argparse.Namespace, precision: str) -> dict[str, Any]:
    """The most layers that train, with activation checkpointing, and the peaks that were seen."""
    shape = "8b" if given.shape != "tiny" else "tiny"
    peaks: dict[int, float] = {}
    for layers in _PROBES:
        peaks[layers] = _try(name, given, shape, layers, precision)["peak_gib"]
    step = (peaks[_PROBES[1]] - peaks[_PROBES[0]]) / (_PROBES[1] - _PROBES[0])
    room = given.memory_gib or read_memory_gib()
    more = math.floor((room - peaks[_PROBES[1]]) / max(step, 1e-9))
    layers = _PROBES[1] + max(0, more)
    refused = []
    for _ in range(_TRIES):
        try:
            seen = _try(name, given, shape, layers, precision)
        except OutOfMemory:
            refused.append(layers)
            layers -= 1
            continue
        return {**seen, "layers": layers, "billions": count(shape, layers), "refused": refused}
    raise RuntimeError(f"{name}: {refused} layers had no room, after peaks of {peaks} GiB")


def _try(
    name: str, given: argparse.Namespace, shape: str, layers: int, precision: str
) -> dict[str, Any]:
    folder = given.work / f"zeros-{shape}-{layers}"
    make_zeros(folder, make_config(shape, layers=layers))
    try:
        return ours(
            f"{name}-{layers}",
            given,
            *("--checkpoint-activations", *_KINDS[name]),
            model=folder,
            precision=precision,
            steps=_STEPS,
            log_every=1,
            batch=8,
        )
    finally:
        shutil.rmtree(folder)


def make_zeros(folder: Path, config: dict[str, Any]) -> None:
    """A model folder whose weights, in bfloat16, are a hole in a file."""
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
    """The weights of a model, without a head that is tied."""
    import torch

    from windlass.recipes.llm_config import read_llama_config
    from windlass.recipes.llm_model import Llama

    with torch.device("meta"):
        weights = Llama(read_llama_config(config)).state_dict()
    return [(name, list(w.shape)) for name, w in weights.items() if name != "lm_head.weight"]


def count(shape: str, layers: int) -> float:
    """Billions of weights."""
    weights = list_weights(make_config(shape, layers=layers))
    return sum(math.prod(sizes) for _, sizes in weights) / 1e9


def read_memory_gib() -> float:
    """Of the GPU, in a process of its own."""
    code = "import torch; print(torch.cuda.mem_get_info()[1] / 2**30)"
    return float(subprocess.check_output([sys.executable, "-c", code], text=True))
