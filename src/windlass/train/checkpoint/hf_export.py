"""Export of a model as a Hugging Face folder that `from_pretrained` loads.

The folder contains safetensors files, the config and the tokenizer. All ranks call these functions together,
because sharded tensors are gathered one after another. Rank 0 writes the files. safetensors is imported on
first use. Weights keep the names that the model gives them. Rename the parameters of a model that does not
use Hugging Face's names before exporting it. Recipes that compute weights (merged adapters) call
`write_weights`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from windlass.errors import EngineError, SpecError
from windlass.train.checkpoint.training_state import clean_name, drop_tied, unwrap
from windlass.train.parallel.context import Context, get_context

FILE_BYTES = 5 << 30
INDEX = "model.safetensors.index.json"


def export_hf(
    model: nn.Module,
    folder: str | os.PathLike[str],
    *,
    config: Any = None,
    tokenizer: Any = None,
    dtype: torch.dtype | None = None,
    context: Context | None = None,
    file_bytes: int = FILE_BYTES,
) -> Path:
    """Write a model to a folder that transformers can load. Other files in the folder are kept.

    config: a mapping, or an object with `save_pretrained` (default: the model's `config`).
    tokenizer: an object with `save_pretrained`.
    dtype: dtype of the floating-point weights (default: unchanged).
    file_bytes: maximum size of one file.
    """
    context = context if context is not None else get_context()
    folder = Path(folder)
    error = ""
    try:
        weights = list_weights(model).items()
        write_weights(weights, folder, dtype=dtype, file_bytes=file_bytes, is_main=context.is_main)
        if context.is_main:
            _write_config(unwrap(model), folder, config)
            if tokenizer is not None:
                tokenizer.save_pretrained(folder)
    except (OSError, SpecError) as failure:
        error = str(failure)
    if errors := [one for one in context.gather(error) if one]:
        raise EngineError(f"the model was not exported to {folder}: {errors[0]}")
    return folder


def list_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return every weight by its name, sharded or not, including frozen ones. Tied weights appear once."""
    model = unwrap(model)
    tensors = {
        name: tensor
        for name, tensor in (
            # parameters too, because a state-dict hook may leave out frozen weights
            *model.named_parameters(remove_duplicate=False),
            *model.state_dict().items(),
        )
        if isinstance(tensor, torch.Tensor)
    }
    tied = [re.compile(pattern) for pattern in getattr(model, "_tied_weights_keys", None) or ()]
    # tied heads last, so that `drop_tied` keeps the weights that they share
    names = sorted(tensors, key=lambda name: any(pattern.search(name) for pattern in tied))
    return drop_tied({clean_name(name): tensors[name] for name in names})


def gather_whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a weight as one full tensor on its device. Every rank must call this."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def write_weights(
    weights: Iterable[tuple[str, torch.Tensor]],
    folder: Path,
    *,
    dtype: torch.dtype | None,
    is_main: bool,
    file_bytes: int = FILE_BYTES,
) -> None:
    """Gather and write one file at a time, so that memory holds the weights of only one file.

    Removes weight files of an earlier export that are not part of this one.
    """
    save_file = import_save_file() if is_main else None
    files: list[dict[str, int]] = []
    for tensors in _fill_files(_gather(weights, dtype), file_bytes, keep=is_main):
        if save_file is not None:
            folder.mkdir(parents=True, exist_ok=True)
            save_file(tensors, folder / f".part-{len(files)}", metadata={"format": "pt"})
            files.append({name: tensor.nbytes for name, tensor in tensors.items()})
    if is_main:
        _name_files(folder, files)


def _name_files(folder: Path, files: list[dict[str, int]]) -> None:
    """Rename the parts to the names that transformers expects, and write an index if there are several."""
    names = [_file_name(number, len(files)) for number in range(len(files))]
    for number, name in enumerate(names):
        (folder / f".part-{number}").chmod(0o644)  # safetensors makes it readable by its owner only
        (folder / f".part-{number}").replace(folder / name)
    if len(names) > 1:
        places = {tensor: name for name, file in zip(names, files, strict=True) for tensor in file}
        total = sum(size for file in files for size in file.values())
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (folder / INDEX).write_text(json.dumps(index, indent=2))
        names.append(INDEX)
    _remove_others(folder, names)


def _gather(
    weights: Iterable[tuple[str, torch.Tensor]], dtype: torch.dtype | None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every weight as one full tensor. All ranks must iterate together."""
    for name, tensor in weights:
        whole = gather_whole(tensor)
        yield name, whole.to(dtype) if dtype and whole.is_floating_point() else whole


def _fill_files(
    weights: Iterator[tuple[str, torch.Tensor]], file_bytes: int, *, keep: bool
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the weights of one file at a time. Without `keep`, only gather them and yield nothing."""
    tensors: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in weights:
        if not keep:
            continue
        if tensors and size + tensor.nbytes > file_bytes:
            yield tensors
            tensors, size = {}, 0
        tensors[name] = tensor.cpu().contiguous()
        size += tensor.nbytes
    if tensors:
        yield tensors


def _write_config(model: nn.Module, folder: Path, config: Any) -> None:
    config = config if config is not None else getattr(model, "config", None)
    if isinstance(config, Mapping):
        (folder / "config.json").write_text(json.dumps(dict(config), indent=2))
    elif callable(save := getattr(config, "save_pretrained", None)):
        save(folder)
    else:
        raise SpecError(
            "a Hugging Face folder needs a config, and this model has none",
            hint="pass config=, a mapping or a transformers config",
        )
    generation = getattr(model, "generation_config", None)
    if callable(save := getattr(generation, "save_pretrained", None)):
        save(folder)


def _remove_others(folder: Path, names: list[str]) -> None:
    """Remove the weights of an earlier export that are not part of this one."""
    for path in (*folder.glob("model*.safetensors"), folder / INDEX):
        if path.name not in names:
            path.unlink(missing_ok=True)


def _file_name(number: int, count: int) -> str:
    if count == 1:
        return "model.safetensors"
    return f"model-{number + 1:05d}-of-{count:05d}.safetensors"


def import_save_file() -> Any:
    """Return safetensors' `save_file`, wrapped so that a failed write (a full disk) raises OSError."""
    try:
        from safetensors import SafetensorError
        from safetensors.torch import save_file
    except ModuleNotFoundError as error:
        raise SpecError(
            "exporting to Hugging Face's format needs safetensors, which is not installed",
            hint="run `pip install 'windlass[llm]'`",
        ) from error

    def save(tensors: Mapping[str, torch.Tensor], path: Path, *, metadata: dict[str, str]) -> None:
        try:
            save_file(tensors, path, metadata=metadata)
        except SafetensorError as error:
            raise OSError(f"{path}: {error}") from error

    return save
