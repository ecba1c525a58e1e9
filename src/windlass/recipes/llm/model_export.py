"""Export of a trained model as a folder for transformers: full weights, merged adapters, and the tokenizer.

All ranks call `export_model`, because weights may be sharded over them. Rank 0 writes. A folder gets its
final name once it is complete. Adapters are also written separately, in the format of peft.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from windlass.recipes.llm.model_build import ADAPTER, HEAD, HfCausalLM, write_config
from windlass.recipes.llm.model_files import read_hf_config
from windlass.train.checkpoint.hf_export import (
    gather_whole,
    import_save_file,
    list_weights,
    write_weights,
)
from windlass.train.parallel.context import Context

_LEFT, _RIGHT, _BASE = f".lora_A.{ADAPTER}.weight", f".lora_B.{ADAPTER}.weight", ".base_layer"
_NOT_COPIED = ("config.json", "model.safetensors.index.json", "pytorch_model.bin.index.json")
_COPIED = (".json", ".model", ".txt", ".jinja")


def export_model(
    model: nn.Module,
    folder: Path,
    *,
    source: Path,
    tokenizer: Path,
    context: Context,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Write the model's current weights to `folder`. `source` is the folder the model was loaded from."""
    weights = list_weights(model.hf if isinstance(model, HfCausalLM) else model)
    hf_config = read_hf_config(source)
    if hf_config.get("tie_word_embeddings"):
        weights.pop(HEAD, None)
    adapters = find_adapters(weights)
    unfinished = folder.with_name(f"{folder.name}.tmp")
    if context.is_main:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
    merged = merge_adapters(weights, _read_scaling(model), is_transposed=_is_transposed(model))
    write_weights(merged, unfinished, dtype=dtype, is_main=context.is_main)
    if context.is_main:
        write_config(unfinished, hf_config, dtype)
        if adapters:
            _save_adapters(model, adapters, unfinished / "adapter", source)
        _copy_small_files(source, tokenizer, unfinished)
        remove_export(folder)
        unfinished.rename(folder)
    context.barrier()


def remove_export(folder: Path) -> None:
    """Remove an earlier export, or the link to one."""
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def find_adapters(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the adapters' full weights on the CPU, under peft's names. All ranks must call this."""
    return {
        f"base_model.model.{name.replace(f'.{ADAPTER}.', '.')}": gather_whole(weight).cpu()
        for name, weight in weights.items()
        if name.endswith((_LEFT, _RIGHT))
    }


def merge_adapters(
    weights: Mapping[str, Tensor], scaling: float, *, is_transposed: bool = False
) -> Iterator[tuple[str, Tensor]]:
    """Yield the full weights with their adapters merged, under their original names."""
    for name, weight in weights.items():
        if name.endswith((_LEFT, _RIGHT)):
            continue
        layer = name.removesuffix(f"{_BASE}.weight")
        whole = gather_whole(weight)
        if layer != name:
            left, right = (gather_whole(weights[layer + end]).float() for end in (_LEFT, _RIGHT))
            added = scaling * (right @ left)
            whole = whole.float() + (added.T if is_transposed else added)
        yield name.replace(f"{_BASE}.", "."), whole


def _read_scaling(model: nn.Module) -> float:
    """Return the adapters' scale, or 1 without adapters."""
    scalings = (float(m.scaling[ADAPTER]) for m in model.modules() if hasattr(m, "lora_A"))
    return next(scalings, 1.0)


def _is_transposed(model: nn.Module) -> bool:
    return any(getattr(module, "fan_in_fan_out", False) for module in model.modules())


def _save_adapters(
    model: nn.Module, adapters: dict[str, Tensor], folder: Path, source: Path
) -> None:
    folder.mkdir()
    import_save_file()(
        {name: weight.contiguous() for name, weight in adapters.items()},
        folder / "adapter_model.safetensors",
        metadata={"format": "pt"},
    )
    ranks = {weight.shape[0] for name, weight in adapters.items() if ".lora_A." in name}
    rank = ranks.pop()
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(source),
        "r": rank,
        "lora_alpha": _read_scaling(model) * rank,
        "target_modules": sorted({name.split(".lora_")[0].rpartition(".")[2] for name in adapters}),
        "fan_in_fan_out": _is_transposed(model),
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def _copy_small_files(source: Path, tokenizer: Path, folder: Path) -> None:
    """Copy the tokenizer and the other small files that belong to a model, such as generation settings."""
    for origin in (source, tokenizer):
        for path in sorted(origin.iterdir()):
            is_wanted = path.suffix in _COPIED and path.name not in _NOT_COPIED
            if is_wanted and path.is_file():
                shutil.copyfile(path, folder / path.name)
