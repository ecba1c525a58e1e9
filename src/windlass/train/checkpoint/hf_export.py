"""A model as a Hugging Face folder: safetensors, config and tokenizer, as `from_pretrained` loads it.

Called by all ranks together, since sharded tensors are gathered one after another; rank 0 writes. safetensors
is imported when it is used. Names are the model's own: another model must be given Hugging Face's first.
`write_weights` is what recipes with weights of their own (merged adapters) call.
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
    """Write a model to a folder that transformers loads; what else is in the folder stays.

    config: a mapping, or what has `save_pretrained`; the model's own `config` unless given.
    tokenizer: what has `save_pretrained`.
    dtype: of the floating-point weights; as they are unless given.
    file_bytes: how large one file may become.
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
    """Every weight by its name, frozen ones too, sharded as they are; tied ones once."""
    model = unwrap(model)
    tensors = {
        name: tensor
        for name, tensor in (
            # a hook may have left frozen ones out; of tied ones the first is kept, which is no head
            *model.named_parameters(remove_duplicate=False),
            *model.state_dict().items(),
        )
        if isinstance(tensor, torch.Tensor)
    }
    tied = [re.compile(pattern) for pattern in getattr(model, "_tied_weights_keys", None) or ()]
    names = sorted(tensors, key=lambda name: any(pattern.search(name) for pattern in tied))
    return drop_tied({clean_name(name): tensors[name] for name in names})


def gather_whole(tensor: torch.Tensor) -> torch.Tensor:
    """A weight as a whole, where it lies; every rank must call it."""
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
    """Gather and write file after file, so that one file's weights are in memory at a time.

    What an earlier export left in the folder and this one has not is removed.
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
    """Give the parts the names that transformers looks for, with an index if there are several."""
    names = [_file_name(number, len(files)) for number in range(len(files))]
    for number, name in enumerate(names):
        (folder / f".part-{number}").chmod(0o644)  # safetensors lets nobody else read it
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
    """Every weight as a whole, one after another, on all ranks."""
    for name, tensor in weights:
        whole = gather_whole(tensor)
        yield name, whole.to(dtype) if dtype and whole.is_floating_point() else whole


def _fill_files(
    weights: Iterator[tuple[str, torch.Tensor]], file_bytes: int, *, keep: bool
) -> Iterator[dict[str, torch.Tensor]]:
    """The weights, as many at a time as fit one file; on ranks that write nothing, only gathered."""
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
            hint="give config=, a mapping or a transformers config",
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
    """safetensors' function, which says by an OSError that there is no room."""
    try:
        from safetensors import SafetensorError
        from safetensors.torch import save_file
    except ModuleNotFoundError as error:
        raise SpecError(
            "exporting to Hugging Face's format needs safetensors, which is not installed here",
            hint="pip install 'windlass[llm]'",
        ) from error

    def save(tensors: Mapping[str, torch.Tensor], path: Path, *, metadata: dict[str, str]) -> None:
        try:
            save_file(tensors, path, metadata=metadata)
        except SafetensorError as error:
            raise OSError(f"{path}: {error}") from error

    return save
