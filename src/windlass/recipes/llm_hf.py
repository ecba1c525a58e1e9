"""Weights of a Hugging Face folder into our Llama, and back into a folder that transformers loads.

Names are the same on both sides, so weights are copied one by one from the memory-mapped files to where the
model lies; nothing holds a second copy of the model. Needs safetensors, which is imported when it is used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from windlass.errors import SpecError
from windlass.recipes.llm_config import make_hf_config, read_llama_config
from windlass.recipes.llm_model import Llama
from windlass.train.checkpoint.hf_export import INDEX, write_weights
from windlass.train.checkpoint.training_state import drop_tied

HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"


def load_llama(
    folder: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Llama:
    """The model of a folder with `config.json` and safetensors; float32 unless asked, whatever is stored."""
    folder = Path(folder)
    config = read_llama_config(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    with torch.device("meta"):
        model = Llama(config).to(dtype)
    model.to_empty(device=device)
    model.tie()
    load_weights(model, folder)
    return model


def load_weights(model: nn.Module, folder: Path) -> None:
    """Copy a folder's weights into a model that has all of them, and no others."""
    missing = dict(model.state_dict(keep_vars=True))
    with torch.no_grad():
        for name, stored in _read_tensors(folder):
            weight = missing.pop(name, None)
            if weight is None:
                if name.endswith("rotary_emb.inv_freq"):
                    continue
                raise SpecError(f"{folder} has weights {name}, and the model has none of that name")
            if weight.shape != stored.shape:
                raise SpecError(
                    f"{name} in {folder} is {tuple(stored.shape)}, and the model wants {tuple(weight.shape)}",
                    hint="config.json and the weights are not of one model",
                )
            weight.copy_(stored)
    if (
        missing.get(HEAD) is not None
        and missing[HEAD] is model.state_dict(keep_vars=True)[EMBEDDING]
    ):
        del missing[HEAD]  # one weight, stored once
    if missing:
        raise SpecError(
            f"{folder} lacks {len(missing)} weights, such as {next(iter(missing))}",
            hint="download the whole model again",
        )


def save_llama(
    model: Llama,
    folder: str | Path,
    *,
    hf_config: dict[str, Any] | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Write a folder that transformers loads; weights must be whole here, not sharded."""
    save_weights(
        model.state_dict(), folder, hf_config=hf_config or make_hf_config(model.config), dtype=dtype
    )


def save_weights(
    weights: Mapping[str, Tensor],
    folder: str | Path,
    *,
    hf_config: dict[str, Any],
    dtype: torch.dtype,
) -> None:
    """Write weights under Hugging Face's names, and the `config.json` beside them."""
    write_weights(drop_tied(weights).items(), Path(folder), dtype=dtype, is_main=True)
    write_config(Path(folder), hf_config, dtype)


def write_config(folder: Path, hf_config: dict[str, Any], dtype: torch.dtype) -> None:
    """Write `config.json` with the type that the weights are stored in."""
    name = str(dtype).removeprefix("torch.")
    text = json.dumps({**hf_config, "dtype": name, "torch_dtype": name}, indent=2)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")


def list_weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, as its index names them."""
    index = folder / INDEX
    if not index.is_file():
        return [folder / "model.safetensors"]
    shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
    return [folder / name for name in sorted(set(shards))]


def _read_tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    for path in list_weight_files(folder):
        try:
            with safe_open(path, framework="pt") as stored:
                for name in stored.keys():  # noqa: SIM118  (it is no dict)
                    yield name, stored.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise SpecError(
                f"the weights in {path} cannot be read: {error}",
                hint=f"ls -l {path} shows its size and who may read it (this is user {os.getuid()}); "
                "copy the model again, or mount it where this user may read it",
            ) from error
