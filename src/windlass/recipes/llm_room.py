"""How many rows a rank takes at once, and how much memory a fine-tuning takes on a GPU with them.

Pure, without torch. Memory is an estimate for our own Llama, held against peaks that were seen on a GPU. It
only lowers what a rank takes by default, so that a larger model trains more slowly instead of not at all.
Called by `llm_trainer`.
"""

from __future__ import annotations

from collections.abc import Callable

from windlass.recipes.llm_config import LlamaConfig
from windlass.recipes.llm_mlp_tiles import MOST_RANK, can_tile, round_up
from windlass.recipes.llm_options import LlmOptions
from windlass.train.shape import Shape

_TOKENS_AT_ONCE = 32_768  # of a rank on a GPU
_ADAPTED_TOKENS_AT_ONCE = 65_536  # with adapters, whose many small kernels take the same time
_USABLE = 0.92  # of a GPU's memory; the rest is the context's, and lies between tensors
_SLACK_BYTES = 3 << 30  # what one layer's backward pass and the optimizer hold for a moment
_LOGITS_BYTES = 4 << 30  # of the loss, see `llm_loss`
_TRAINED_BYTES = {"adamw8bit": 10.1, "sgd": 8.0}  # of a weight with its gradient and moments
_ADAMW_BYTES = 16.0
_ADAPTER_GROUPS = (3, 1, 2, 1)  # adapters of layers with one input, which lie in one matrix
_BUCKET_BYTES = 4.0  # DDP's copy of a gradient


def choose_rows(options: LlmOptions, shape: Shape, *, config: LlamaConfig | None = None) -> int:
    """Rows that a rank takes at once, unless it was told: equal parts of its share of a step.

    config: of our own Llama on a GPU. Only then more are taken with adapters, as it is known what fits.
    """
    if options.micro_batch:
        return options.micro_batch
    share = max(1, -(-options.samples_per_step // shape.data_ranks))
    rows = _split(share, most=_TOKENS_AT_ONCE // options.length)
    if config is None:
        return rows
    most = _split(share, most=_ADAPTED_TOKENS_AT_ONCE // options.length)
    for more in range(most, rows, -1):
        if is_mlp_joined(config, options, shape, more * options.length):
            return more
    return rows


def _split(share: int, *, most: int) -> int:
    """The size of parts of a share, as few as there can be: one of another size is compiled for."""
    num_parts = -(-share // max(1, most))
    return -(-share // num_parts)


def is_mlp_joined(config: LlamaConfig, options: LlmOptions, shape: Shape, num_tokens: int) -> bool:
    """Whether an MLP with adapters is one function on a GPU: `llm_adapted_mlp`."""
    if not 0 < options.lora <= MOST_RANK or options.fp8 or shape.tp > 1:
        return False
    names = set(options.lora_targets)
    if names and not ("down_proj" in names and names & {"gate_proj", "up_proj"}):
        return False
    return can_tile(num_tokens, hidden_size=config.hidden_size, mlp_size=config.mlp_size)


def estimate_bytes(
    config: LlamaConfig, options: LlmOptions, shape: Shape, *, num_tokens: int
) -> int:
    """The memory of one rank that takes so many tokens at once; options: with precision decided."""
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
    is_joined = is_mlp_joined(config, options, shape, num_tokens)
    activations = width * _count_activations(config, options, is_joined=is_joined)
    return round(fixed) + _LOGITS_BYTES + _SLACK_BYTES + activations * num_tokens


def fit_rows(rows: int, *, estimate: Callable[[int], int], memory_bytes: int) -> int:
    """So many rows, or half as often as it takes to have room for them by an estimate; one at the least."""
    while rows > 1 and estimate(rows) > _USABLE * memory_bytes:
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


def _count_activations(config: LlamaConfig, options: LlmOptions, *, is_joined: bool) -> int:
    """Numbers that are kept of a token from the forward pass to the backward pass."""
    layer = 4 * config.hidden_size + 3 * (config.query_size + config.key_size)
    layer += (2 if is_joined else 3) * config.mlp_size
    for num_adapters in _ADAPTER_GROUPS:  # what they make of it, and once more while it is copied
        layer += 2 * round_up(num_adapters * options.lora)
    if options.checkpoint_activations:  # a layer is computed again, with its gradients beside it
        return config.num_layers * config.hidden_size + 2 * layer
    return config.num_layers * layer


def _count_adapters(config: LlamaConfig, options: LlmOptions) -> int:
    sides = 7 * config.hidden_size + 2 * (config.query_size + config.key_size) + 3 * config.mlp_size
    return options.lora * config.num_layers * sides
