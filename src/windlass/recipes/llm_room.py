"""How much memory a fine-tuning takes on a GPU, and how many rows it has room for at once.

Pure, without torch. An estimate for our own Llama, held against peaks that were seen on a GPU. It only lowers
what a rank takes at once by default, so that a larger model trains more slowly instead of not at all. Called
by `llm_trainer`.
"""

from __future__ import annotations

from dataclasses import dataclass

from windlass.recipes.llm_config import LlamaConfig
from windlass.recipes.llm_options import LlmOptions
from windlass.train.shape import Shape

_USABLE = 0.92  # of a GPU's memory; the rest is the context's, and lies between tensors
_SLACK_BYTES = 3 << 30  # what one layer's backward pass and the optimizer hold for a moment
_LOGITS_BYTES = 4 << 30  # of the loss, see `llm_loss`
_TRAINED_BYTES = {"adamw8bit": 10.1, "sgd": 8.0}  # of a weight with its gradient and moments
_ADAMW_BYTES = 16.0
_ADAPTED_NUMBERS = 512  # of a token and a layer: what adapters make of it, and the room beside that
_BUCKET_BYTES = 4.0  # DDP's copy of a gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What a training takes, whatever it takes at once, and what each token of that adds."""

    fixed_bytes: int
    bytes_per_token: int

    def count(self, num_tokens: int) -> int:
        return self.fixed_bytes + self.bytes_per_token * num_tokens


def estimate_footprint(config: LlamaConfig, options: LlmOptions, *, shape: Shape) -> Footprint:
    """The memory of one rank; options: with precision and strategy decided."""
    width = 4 if options.precision == "fp32" else 2  # bytes of what is computed
    head = config.vocab_size * config.hidden_size
    layers = config.num_matmul_weights - head
    weights = config.num_matmul_weights + (0 if config.is_tied else head)
    num_shards = shape.fsdp * shape.tp
    if options.lora:
        frozen_bytes = 2 if options.is_base_narrow else 4
        fixed = frozen_bytes * weights / num_shards + _ADAMW_BYTES * _count_adapters(
            config, options
        )
    else:
        per_weight = _TRAINED_BYTES.get(str(options.optimizer), _ADAMW_BYTES)
        per_weight += _BUCKET_BYTES if shape.dp > 1 and num_shards == 1 else 0.0
        fixed = per_weight * weights / num_shards + 8 * head  # its gradient, twice for a moment
    if not options.is_base_joined:  # weights that are cast, and joined, for a pass
        fixed += width * layers / (config.num_layers if options.checkpoint_activations else 1)
    return Footprint(
        fixed_bytes=round(fixed) + _LOGITS_BYTES + _SLACK_BYTES,
        bytes_per_token=width * _count_activations(config, options),
    )


def fit_rows(rows: int, *, length: int, footprint: Footprint, memory_bytes: int) -> int:
    """So many rows of this length, or half as often as it takes to have room for them; one at the least."""
    while rows > 1 and footprint.count(rows * length) > _USABLE * memory_bytes:
        rows //= 2
    return rows


def suggest_smaller(options: LlmOptions) -> str:
    """What would take less memory, of what is not done already."""
    rows = options.micro_batch or 1
    ways = {
        f"--micro-batch {rows // 2}": rows > 1,
        "--checkpoint-activations": not options.checkpoint_activations,
        "--optimizer adamw8bit": not options.lora and options.optimizer == "adamw",
        "--lora 16": not options.lora,
        "--strategy fsdp over more GPUs": options.strategy == "ddp",
        "a smaller --length": True,
    }
    return ", ".join(way for way, is_open in ways.items() if is_open)


def _count_activations(config: LlamaConfig, options: LlmOptions) -> int:
    """Numbers that are kept of a token from the forward pass to the backward pass."""
    layer = 4 * config.hidden_size + 3 * (config.query_size + config.key_size)
    layer += (2 if options.is_mlp_joined else 3) * config.mlp_size
    layer += _ADAPTED_NUMBERS if options.lora else 0
    if options.checkpoint_activations:  # a layer is computed again, with its gradients beside it
        return config.num_layers * config.hidden_size + 2 * layer
    return config.num_layers * layer


def _count_adapters(config: LlamaConfig, options: LlmOptions) -> int:
    sides = 7 * config.hidden_size + 2 * (config.query_size + config.key_size) + 3 * config.mlp_size
    return options.lora * config.num_layers * sides
