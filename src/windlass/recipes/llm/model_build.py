"""Construction of the model to fine-tune: the built-in Llama if equivalent, else the Hugging Face model.

Both models have the same signature and return their loss, so one loop trains both. Trained weights are
float32. With adapters, the base weights are frozen and checkpoints hold only the adapters. Called by
`llm_trainer`.

The built-in Llama loads weights from a Hugging Face folder and saves them in a form that transformers can
load. Parameter names are the same in both. Weights are copied one by one from the memory-mapped files to the
device, so there is never a second copy of the model. Needs safetensors, which is imported on use.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from windlass.errors import SpecError
from windlass.recipes.llm.cross_entropy import linear_cross_entropy
from windlass.recipes.llm.linear_layers import join_with_adapters, keep_frozen_joined, use_fp8
from windlass.recipes.llm.llama import Llama, make_mask
from windlass.recipes.llm.llama_config import find_difference, make_hf_config, read_llama_config
from windlass.recipes.llm.llm_options import LlmOptions
from windlass.recipes.llm.model_files import has_safetensors, read_hf_config, summarize_error
from windlass.train.checkpoint.hf_export import INDEX, write_weights
from windlass.train.checkpoint.training_state import drop_tied
from windlass.train.data.token_packing import IGNORED

HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
ADAPTER = "default"
_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
# models whose logits are exactly the last hidden states times the head
_PLAIN_HEADS = (
    *("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"),
    *("GPT2LMHeadModel", "Phi3ForCausalLM"),
)


def load_llama(
    folder: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Llama:
    """Load a folder with `config.json` and safetensors. The stored dtype is ignored."""
    folder = Path(folder)
    config = read_llama_config(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    with torch.device("meta"):
        model = Llama(config).to(dtype)
    model.to_empty(device=device)
    model.tie()
    load_weights(model, folder)
    return model


def load_weights(model: nn.Module, folder: Path) -> None:
    """Copy a folder's weights into a model that has exactly the same weights."""
    missing = dict(model.state_dict(keep_vars=True))
    with torch.no_grad():
        for name, stored in _read_tensors(folder):
            weight = missing.pop(name, None)
            if weight is None:
                if name.endswith("rotary_emb.inv_freq"):
                    continue
                raise SpecError(f"{folder} has a weight {name}, which the model does not have")
            if weight.shape != stored.shape:
                raise SpecError(
                    f"{name} in {folder} is {tuple(stored.shape)}, but the model needs {tuple(weight.shape)}",
                    hint="config.json and the weights belong to different models",
                )
            weight.copy_(stored)
    if (
        missing.get(HEAD) is not None
        and missing[HEAD] is model.state_dict(keep_vars=True)[EMBEDDING]
    ):
        del missing[HEAD]  # tied weights are stored once
    if missing:
        raise SpecError(
            f"{folder} is missing {len(missing)} weights, such as {next(iter(missing))}",
            hint="download the whole model again",
        )


def save_llama(
    model: Llama,
    folder: str | Path,
    *,
    hf_config: dict[str, Any] | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Write a folder that transformers can load. Weights must be complete on this rank, not sharded."""
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
    """Write weights under Hugging Face's names, with `config.json` beside them."""
    write_weights(drop_tied(weights).items(), Path(folder), dtype=dtype, is_main=True)
    write_config(Path(folder), hf_config, dtype)


def write_config(folder: Path, hf_config: dict[str, Any], dtype: torch.dtype) -> None:
    """Write `config.json` with the dtype in which the weights are stored."""
    name = str(dtype).removeprefix("torch.")
    text = json.dumps({**hf_config, "dtype": name, "torch_dtype": name}, indent=2)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")


def list_weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder, as listed in its index."""
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
                for name in stored.keys():  # noqa: SIM118  (not a dict)
                    yield name, stored.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise SpecError(
                f"cannot read the weights in {path}: {error}",
                hint=f"run `ls -l {path}` for its size and permissions (this is user {os.getuid()}); "
                "copy the model again, or mount it where this user can read it",
            ) from error


class HfCausalLM(nn.Module):
    """Wrapper that gives a transformers causal language model the signature of the built-in Llama."""

    def __init__(self, hf: Any) -> None:
        super().__init__()
        self.hf = hf
        self._no_split_modules = list(getattr(hf, "_no_split_modules", None) or [])
        self.has_plain_head = type(hf).__name__ in _PLAIN_HEADS

    def forward(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        offsets: Tensor | None = None,
        labels: Tensor | None = None,
        scale: float | Tensor = 1.0,
    ) -> Tensor:
        """Return logits, or the scaled loss if labels are given. See `llama.Llama.forward`."""
        inputs: dict[str, Any] = {"input_ids": tokens, "use_cache": False}
        if offsets is not None:
            inputs |= {
                "position_ids": positions,
                "attention_mask": self._make_bias(offsets, tokens),
            }
        if labels is None or not self.has_plain_head:
            logits = self.hf(**inputs).logits
            if labels is None:
                return logits
            loss = functional.cross_entropy(
                logits.flatten(0, 1).float(),
                labels.flatten(),
                ignore_index=IGNORED,
                reduction="sum",
            )
            return loss * scale
        hidden = self.hf.base_model(**inputs).last_hidden_state
        if torch.is_autocast_enabled(hidden.device.type):
            hidden = hidden.to(torch.get_autocast_dtype(hidden.device.type))
        weight = self.hf.get_output_embeddings().weight
        return linear_cross_entropy(hidden, weight, labels, scale=scale)

    def _make_bias(self, offsets: Tensor, tokens: Tensor) -> Tensor:
        """Return the attention mask as a bias on the scores, which every transformers attention accepts."""
        mask = make_mask(offsets, *tokens.shape)
        dtype = self.hf.get_input_embeddings().weight.dtype
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(
            ~mask, torch.finfo(dtype).min
        )


def explain_difference(folder: Path, options: LlmOptions) -> str:
    """Return why a folder needs Hugging Face's own model, or an empty string if the built-in Llama fits."""
    if options.hf_model:
        return "--hf-model"
    difference = find_difference(read_hf_config(folder))
    if not difference and not has_safetensors(folder):
        return "its weights are not safetensors"
    return difference


def build_model(
    folder: Path, options: LlmOptions, *, device: torch.device, say: Callable[[str], None]
) -> nn.Module:
    """Build the model to train, with a folder's weights."""
    difference = explain_difference(folder, options)
    dtype = torch.bfloat16 if options.is_base_narrow else torch.float32
    model: nn.Module
    if difference:
        if options.fp8:
            raise SpecError(
                f"--precision fp8 needs the built-in Llama, but {difference}",
                hint="use --precision bf16",
            )
        say(f"Hugging Face's own model ({difference}), weights in {_name(dtype)}")
        model = _load_hf(folder, dtype)
    else:
        say(f"built-in Llama, weights in {_name(dtype)}, computed in {options.precision}")
        model = load_llama(folder, device=device, dtype=dtype)
        model.model.compute_dtype = torch.bfloat16 if options.precision == "bf16" else None
    prepare_layers(model, options, say=say)
    return model


def prepare_layers(model: nn.Module, options: LlmOptions, *, say: Callable[[str], None]) -> None:
    """Add adapters, float8 and compilation, as set in the options. The model must be on its device."""
    if options.lora:
        add_adapters(model, options, say=say)
    if options.fp8:
        say(f"{use_fp8(model)} layers in float8")
    if not isinstance(model, Llama):
        return
    if options.is_base_joined:
        keep_frozen_joined(model.model)
    if options.compile:
        model.compile_blocks()


def add_adapters(model: nn.Module, options: LlmOptions, *, say: Callable[[str], None]) -> None:
    """Add LoRA with peft to linear layers except the head. All other weights are frozen and not saved."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ModuleNotFoundError:
        raise SpecError("--lora needs peft", hint="run `pip install 'windlass[llm]'`") from None
    _check_targets(model, options.lora_targets)
    config = LoraConfig(
        r=options.lora,
        lora_alpha=options.alpha,
        target_modules=list(options.lora_targets) or _find_linear(model),
        fan_in_fan_out=_is_transposed(model),
    )
    inject_adapter_in_model(config, model, adapter_name=ADAPTER)
    learned = [weight for weight in model.parameters() if weight.requires_grad]
    for weight in learned:
        weight.data = weight.data.float()
    num_learned = sum(weight.numel() for weight in learned)
    say(
        f"adapters of rank {options.lora} on {len(learned) // 2} layers: {num_learned:,} trainable parameters"
    )
    join_with_adapters(model, ADAPTER)
    weights = model.named_parameters(remove_duplicate=False)  # a tied head has two names
    frozen = {name for name, weight in weights if not weight.requires_grad}

    def leave_out(_module: nn.Module, state: dict[str, Any], *_rest: Any) -> None:
        for name in frozen & state.keys():
            del state[name]

    model.register_state_dict_post_hook(leave_out)


def _check_targets(model: nn.Module, targets: tuple[str, ...]) -> None:
    """Raise SpecError for names that match no linear layer.

    The head takes no adapter, because the loss reads only its weight.
    """
    known = _find_linear(model)
    layers = [name for name, _ in model.named_modules() if name.rpartition(".")[2] in known]
    for target in targets:
        if not any(f".{name}".endswith(f".{target}") for name in layers):
            raise SpecError(
                f"--lora-targets: {target} is not a linear layer that can have adapters",
                hint=f"known layers: {', '.join(known)}",
            )


def check_positions(
    model: nn.Module, hf_config: dict[str, Any], *, length: int, say: Callable[[str], None]
) -> None:
    """Raise SpecError if rows exceed the position table. Report rows that exceed the trained length."""
    known = hf_config.get("max_position_embeddings") or hf_config.get("n_positions")
    if not isinstance(known, int) or length <= known:
        return
    text = f"rows have {length} tokens, but the model was made for {known}"
    if isinstance(model, HfCausalLM):
        words = model.hf.get_input_embeddings()
        tables = (part for part in model.modules() if isinstance(part, nn.Embedding))
        # some tables have a few extra entries at their start
        if any(known <= one.num_embeddings < known + 8 for one in tables if one is not words):
            raise SpecError(text, hint=f"pass --length {known} or less")
    say(text)


def check_causal(model: HfCausalLM, vocab_size: int) -> None:
    """Raise SpecError for a model such as BERT, in which tokens attend to later ones and could copy them."""
    device = next(model.parameters()).device
    tokens = torch.arange(2, 10, device=device)[None].remainder(vocab_size)
    others = tokens.clone()
    others[0, -1] = 1
    with torch.no_grad():
        one, other = (model(some)[0, :-1].float() for some in (tokens, others))
    if (one - other).norm() > 1e-4 * one.norm():
        raise SpecError(
            "the model is not a causal language model: tokens attend to later tokens",
            hint="use a model that generates text, such as Llama, Qwen or GPT-2",
        )


def check_packing(model: HfCausalLM, vocab_size: int, *, length: int) -> None:
    """Raise SpecError if the model cannot keep packed documents separate."""
    window = _find_window(model.hf.config)
    if window and window < length:  # the document mask would replace the window's mask
        raise SpecError(
            f"the model attends to {window} tokens at a time, and packed rows of {length} exceed that",
            hint=f"pass --length {window}, or --no-pack for one document per row",
        )
    tokens = torch.arange(2, 26)[None].remainder(vocab_size)
    device = next(model.parameters()).device
    tokens, cut = tokens.to(device), 16
    positions = torch.cat([torch.arange(cut), torch.arange(24 - cut)])[None].to(device)
    offsets = torch.tensor([0, cut, 24], dtype=torch.int32, device=device)
    refusal = SpecError(
        "this model does not separate the documents of one row",
        hint="pass --no-pack for one document per row",
    )
    with torch.no_grad():
        alone = model(tokens[:, cut:])[0].float()
        try:
            packed = model(tokens, positions=positions, offsets=offsets)[0, cut:].float()
        # the model does not support such a mask or positions
        except (TypeError, ValueError, RuntimeError) as error:
            raise refusal from error
    if (packed - alone).norm() > 0.02 * alone.norm():
        raise refusal


def _find_window(config: Any) -> int | None:
    """Return the smallest attention window of any layer, or None if all layers attend to all tokens."""
    names = ("sliding_window", "attention_chunk_size", "window_size")
    windows = [getattr(config.get_text_config(), name, None) for name in names]
    return min((window for window in windows if isinstance(window, int)), default=None)


def _load_hf(folder: Path, dtype: torch.dtype) -> HfCausalLM:
    try:
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging
    except ModuleNotFoundError:
        raise SpecError(
            "this model needs transformers", hint="run `pip install 'windlass[llm]'`"
        ) from None
    logging.disable_progress_bar()  # every rank would print one
    try:
        hf, info = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise SpecError(
            f"transformers cannot load the model in {folder}: {summarize_error(error)}",
            hint="check that config.json and the weights match, and that transformers is new enough",
        ) from error
    if missing := sorted(info["missing_keys"]):  # transformers would initialize them randomly
        raise SpecError(
            f"{folder} is missing {len(missing)} weights, such as {missing[0]}",
            hint="config.json and the weights belong to different models, or the download is incomplete",
        )
    return HfCausalLM(hf)


def _is_transposed(model: nn.Module) -> bool:
    """Return whether linear layers store their weights transposed, as GPT-2's do."""
    if not isinstance(model, HfCausalLM):
        return False
    return any(isinstance(layer, _conv1d()) for layer in model.modules())


def _find_linear(model: nn.Module) -> list[str]:
    """Return the last name component of all linear layers except the head."""
    if not isinstance(model, HfCausalLM):
        return list(_LAYERS)
    head = model.hf.get_output_embeddings()
    kinds = (nn.Linear, *_conv1d())
    layers = {
        name.rpartition(".")[2]
        for name, layer in model.named_modules()
        if isinstance(layer, kinds) and layer is not head
    }
    return sorted(layers)


def _conv1d() -> tuple[type, ...]:
    from transformers.pytorch_utils import Conv1D  # GPT-2's linear layer

    return (Conv1D,)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
