"""Makes the model of a fine-tuning: our Llama where it computes the same, else Hugging Face's own.

Both are called alike and return their loss, so one loop trains both. Weights are float32 when they are
trained; with adapters they are frozen, and checkpoints hold the adapters alone. Called by `train_framework`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from windlass.errors import SpecError
from windlass.recipes.llm_attention import make_mask
from windlass.recipes.llm_config import find_difference
from windlass.recipes.llm_files import has_safetensors, read_hf_config, tell_reason
from windlass.recipes.llm_frozen import keep_frozen_joined
from windlass.recipes.llm_hf import load_llama
from windlass.recipes.llm_linear import join_with_adapters, use_fp8
from windlass.recipes.llm_loss import linear_cross_entropy
from windlass.recipes.llm_model import Llama
from windlass.recipes.llm_options import LlmOptions
from windlass.train.data.token_packing import IGNORED

ADAPTER = "default"
_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
# whose logits are the last hidden states times the head, and nothing more
_PLAIN_HEADS = (
    *("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"),
    *("GPT2LMHeadModel", "Phi3ForCausalLM"),
)


class HfCausalLM(nn.Module):
    """A causal language model of transformers, called as our Llama is."""

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
        """Logits, or the scaled loss; see `llm_model.Llama.forward`."""
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
        """Which token sees which, as all attention of transformers takes it: added to the scores."""
        mask = make_mask(offsets, *tokens.shape)
        dtype = self.hf.get_input_embeddings().weight.dtype
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(
            ~mask, torch.finfo(dtype).min
        )


def tell_difference(folder: Path, options: LlmOptions) -> str:
    """Why a folder's model is Hugging Face's own and not our Llama; nothing where it is ours."""
    if options.hf_model:
        return "--hf-model"
    difference = find_difference(read_hf_config(folder))
    if not difference and not has_safetensors(folder):
        return "its weights are no safetensors"
    return difference


def build_model(
    folder: Path, options: LlmOptions, *, device: torch.device, say: Callable[[str], None]
) -> nn.Module:
    """The model with a folder's weights, as it is to be trained."""
    difference = tell_difference(folder, options)
    dtype = torch.bfloat16 if options.is_base_narrow else torch.float32
    model: nn.Module
    if difference:
        if options.fp8:
            raise SpecError(
                f"--precision fp8 needs our own Llama, and {difference}", hint="--precision bf16"
            )
        say(f"Hugging Face's own model ({difference}), weights in {_name(dtype)}")
        model = _load_hf(folder, dtype)
    else:
        say(f"Windlass' Llama, weights in {_name(dtype)}, computed in {options.precision}")
        model = load_llama(folder, device=device, dtype=dtype)
        model.model.compute_dtype = torch.bfloat16 if options.precision == "bf16" else None
    prepare_layers(model, options, say=say)
    return model


def prepare_layers(model: nn.Module, options: LlmOptions, *, say: Callable[[str], None]) -> None:
    """Adapters, float8 and compilation, as the options want them, for a model that lies where it will."""
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
    """LoRA by peft on all linear layers but the head; everything else is frozen, and not saved."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ModuleNotFoundError:
        raise SpecError("--lora needs peft", hint="pip install 'windlass[llm]'") from None
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
        f"adapters of rank {options.lora} on {len(learned) // 2} layers: {num_learned:,} weights learn"
    )
    join_with_adapters(model, ADAPTER)
    weights = model.named_parameters(remove_duplicate=False)  # a tied head has two names
    frozen = {name for name, weight in weights if not weight.requires_grad}

    def leave_out(_module: nn.Module, state: dict[str, Any], *_rest: Any) -> None:
        for name in frozen & state.keys():
            del state[name]

    model.register_state_dict_post_hook(leave_out)


def _check_targets(model: nn.Module, targets: tuple[str, ...]) -> None:
    """Refuse names that are no layer's; the head learns none, as the loss takes its weight alone."""
    known = _find_linear(model)
    layers = [name for name, _ in model.named_modules() if name.rpartition(".")[2] in known]
    for target in targets:
        if not any(f".{name}".endswith(f".{target}") for name in layers):
            raise SpecError(
                f"--lora-targets: {target} is no linear layer that adapters can be on",
                hint=f"there are {', '.join(known)}",
            )


def check_positions(
    model: nn.Module, hf_config: dict[str, Any], *, length: int, say: Callable[[str], None]
) -> None:
    """Refuse rows that are longer than a table of positions; say where they are longer than what was seen."""
    known = hf_config.get("max_position_embeddings") or hf_config.get("n_positions")
    if not isinstance(known, int) or length <= known:
        return
    text = f"rows of {length} tokens, and the model was made for {known}"
    if isinstance(model, HfCausalLM):
        words = model.hf.get_input_embeddings()
        tables = (part for part in model.modules() if isinstance(part, nn.Embedding))
        # some begin a few places later
        if any(known <= one.num_embeddings < known + 8 for one in tables if one is not words):
            raise SpecError(text, hint=f"--length {known}, or less")
    say(text)


def check_causal(model: HfCausalLM, vocab_size: int) -> None:
    """Refuse a model whose tokens see those that follow, such as BERT: it would learn to copy them."""
    device = next(model.parameters()).device
    tokens = torch.arange(2, 10, device=device)[None].remainder(vocab_size)
    others = tokens.clone()
    others[0, -1] = 1
    with torch.no_grad():
        one, other = (model(some)[0, :-1].float() for some in (tokens, others))
    if (one - other).norm() > 1e-4 * one.norm():
        raise SpecError(
            "this model's tokens see those that follow them: it is no causal language model",
            hint="a model that generates text, such as Llama, Qwen or GPT-2",
        )


def check_packing(model: HfCausalLM, vocab_size: int, *, length: int) -> None:
    """Refuse a model for which documents in one row are not as if they were alone."""
    window = _find_window(model.hf.config)
    if window and window < length:  # the mask of documents takes the place of the window's
        raise SpecError(
            f"the model sees {window} tokens at a time, to which packed rows of {length} do not keep",
            hint=f"--length {window}, or --no-pack: one document a row",
        )
    tokens = torch.arange(2, 26)[None].remainder(vocab_size)
    device = next(model.parameters()).device
    tokens, cut = tokens.to(device), 16
    positions = torch.cat([torch.arange(cut), torch.arange(24 - cut)])[None].to(device)
    offsets = torch.tensor([0, cut, 24], dtype=torch.int32, device=device)
    refusal = SpecError(
        "this model does not keep documents of one row apart", hint="--no-pack: one document a row"
    )
    with torch.no_grad():
        alone = model(tokens[:, cut:])[0].float()
        try:
            packed = model(tokens, positions=positions, offsets=offsets)[0, cut:].float()
        except (
            TypeError,
            ValueError,
            RuntimeError,
        ) as error:  # it takes no such mask, or no positions
            raise refusal from error
    if (packed - alone).norm() > 0.02 * alone.norm():
        raise refusal


def _find_window(config: Any) -> int | None:
    """How many tokens some layers see at most, where that is less than all; by the names it has."""
    names = ("sliding_window", "attention_chunk_size", "window_size")
    windows = [getattr(config.get_text_config(), name, None) for name in names]
    return min((window for window in windows if isinstance(window, int)), default=None)


def _load_hf(folder: Path, dtype: torch.dtype) -> HfCausalLM:
    try:
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging
    except ModuleNotFoundError:
        raise SpecError(
            "this model needs transformers", hint="pip install 'windlass[llm]'"
        ) from None
    logging.disable_progress_bar()  # of every rank
    try:
        hf, info = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise SpecError(
            f"transformers cannot load the model in {folder}: {tell_reason(error)}",
            hint="do config.json and the weights belong together? Is transformers new enough?",
        ) from error
    if missing := sorted(info["missing_keys"]):  # transformers would make them up
        raise SpecError(
            f"{folder} lacks {len(missing)} weights, such as {missing[0]}",
            hint="config.json and the weights are not of one model, or not all of it was downloaded",
        )
    return HfCausalLM(hf)


def _is_transposed(model: nn.Module) -> bool:
    """Whether linear layers have their weights the other way round, as GPT-2's do."""
    if not isinstance(model, HfCausalLM):
        return False
    return any(isinstance(layer, _conv1d()) for layer in model.modules())


def _find_linear(model: nn.Module) -> list[str]:
    """The last names of the linear layers, without the head's."""
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
    from transformers.pytorch_utils import Conv1D  # what GPT-2 has for linear layers

    return (Conv1D,)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
