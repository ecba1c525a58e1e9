"""Rows that a rank computes at a time, and an estimate of the GPU memory that a fine-tuning needs.

Performs no I/O. The estimate is for the built-in Llama and was compared with measured peaks. A model that
does not fit with the defaults takes fewer rows at a time, then recomputes activations. One that still does
not fit is refused before anything is loaded. Called by `llm_trainer`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from windlass.errors import SpecError
from windlass.recipes.llm.kernel_launch import MOST_RANK, can_tile, round_up
from windlass.recipes.llm.llama_config import LlamaConfig
from windlass.recipes.llm.llm_options import LlmOptions
from windlass.train.parallel.shape import Shape

_TOKENS_AT_ONCE = 32_768  # per rank on a GPU
_ADAPTED_TOKENS_AT_ONCE = 65_536  # with adapters, whose many small kernels cost the same
_USABLE = 0.92  # share of a GPU's memory, without the CUDA context and fragmentation
_MOST = 0.96  # no run with an estimate above this share has ever fit
_SLACK_BYTES = 3 << 30  # limit to which temporary buffers of kernels grow with the tokens
_LOGITS_BYTES = 4 << 30  # upper limit for the logits, see `cross_entropy`
_TRAINED_BYTES = {"adamw8bit": 10.03, "sgd": 8.0}  # per weight, with its gradient and moments
_ADAMW_BYTES = 16.0
_ADAPTER_GROUPS = (3, 1, 2, 1)  # adapters of layers with one input, which share one matrix
_BUCKET_BYTES = 4.0  # DDP's copy of a gradient


def choose_rows(options: LlmOptions, shape: Shape, *, config: LlamaConfig | None = None) -> int:
    """Return the rows that a rank takes at a time: the given number, or equal parts of its share of a step.

    config: set for the built-in Llama on a GPU. Only then do adapters get more rows, because their memory
        need is known.
    """
    if options.micro_batch:
        return options.micro_batch
    share = _count_share(options, shape)
    rows = _split(share, most=_TOKENS_AT_ONCE // options.length)
    if config is None:
        return rows
    most = _split(share, most=_ADAPTED_TOKENS_AT_ONCE // options.length)
    for more in range(most, rows, -1):
        if is_mlp_joined(config, options, shape, more * options.length):
            return more
    return rows


def _split(share: int, *, most: int) -> int:
    """Return the part size for the fewest equal parts, because every size is compiled separately."""
    num_parts = -(-share // max(1, most))
    return -(-share // num_parts)


def is_mlp_joined(config: LlamaConfig, options: LlmOptions, shape: Shape, num_tokens: int) -> bool:
    """Return whether an MLP with adapters runs as one function on a GPU. See `gated_mlp`."""
    if not 0 < options.lora <= MOST_RANK or options.fp8 or shape.tp > 1:
        return False
    names = set(options.lora_targets)
    if names and not ("down_proj" in names and names & {"gate_proj", "up_proj"}):
        return False
    return can_tile(num_tokens, hidden_size=config.hidden_size, mlp_size=config.mlp_size)


def estimate_bytes(
    config: LlamaConfig, options: LlmOptions, shape: Shape, *, num_tokens: int
) -> int:
    """Return the peak memory of a rank that takes this many tokens at a time.

    options: options with a settled precision. The peak is in the loss, in the layers' backward pass, or at
    its end.
    """
    width = 4 if options.precision == "fp32" else 2  # bytes per computed value
    head = config.vocab_size * config.hidden_size
    layers = config.num_matmul_weights - head
    weights = config.num_matmul_weights + (0 if config.is_tied else head)
    num_shards = shape.fsdp * shape.tp
    if options.lora:
        frozen_bytes = 2 if options.is_base_narrow else 4
        fixed = frozen_bytes * weights / num_shards
        fixed += _ADAMW_BYTES * _count_adapters(config, options)
    else:
        per_weight = _TRAINED_BYTES.get(str(options.optimizer), _ADAMW_BYTES)
        per_weight += _BUCKET_BYTES if shape.dp > 1 and num_shards == 1 else 0.0
        fixed = per_weight * weights / num_shards
    if not options.is_base_joined:  # cast and joined copies of the weights for a pass
        fixed += width * layers / (config.num_layers if options.checkpoint_activations else 1)
    layer = (
        width
        * num_tokens
        * _count_layer(config, options, is_joined=is_mlp_joined(config, options, shape, num_tokens))
    )
    logits = min(_LOGITS_BYTES, width * num_tokens * config.vocab_size)
    head_gradient = 0 if options.lora else 4 * head
    if (
        options.checkpoint_activations
    ):  # a recomputed layer and its gradients are in memory together
        kept, in_layers = width * num_tokens * config.num_layers * config.hidden_size, 2 * layer
    else:
        kept, in_layers = config.num_layers * layer, 0
    in_loss = logits + head_gradient + (0 if options.is_base_narrow else width * head)
    if config.is_tied:  # the head's gradient is kept until the embedding's is added
        in_layers += head_gradient
    moment = max(kept + in_loss, kept + in_layers, 2 * head_gradient)
    return round(fixed + moment) + min(_SLACK_BYTES, logits)


def fit_to_memory(
    options: LlmOptions,
    shape: Shape,
    config: LlamaConfig,
    *,
    memory_bytes: int,
    rows_given: bool,
    say: Callable[[str], None],
) -> LlmOptions:
    """Return options with which the built-in Llama fits on a GPU, and report the choice and its cost.

    Fewer rows at a time come first, because they cost less than recomputing activations. Explicit settings
    are kept. options: with `micro_batch` settled. Raises SpecError if nothing fits.
    """
    if rows_given and options.recompute_given:
        return options

    def estimate(tried: LlmOptions, rows: int) -> int:
        return estimate_bytes(config, tried, shape, num_tokens=rows * tried.length)

    def lower(tried: LlmOptions) -> LlmOptions:
        if rows_given:
            return tried
        rows = fit_rows(
            tried.micro_batch or 1,
            estimate=lambda rows: estimate(tried, rows),
            memory_bytes=memory_bytes,
        )
        return replace(tried, micro_batch=rows)

    def need(tried: LlmOptions) -> int:
        return estimate(tried, tried.micro_batch or 1)

    def describe(needed: int) -> str:
        return f"about {needed / 2**30:.0f} GiB (the GPU has {memory_bytes / 2**30:.0f} GiB)"

    settled = kept = lower(options)
    can_recompute = not (options.checkpoint_activations or options.recompute_given)
    if can_recompute and need(kept) > _USABLE * memory_bytes:
        settled = lower(replace(options, checkpoint_activations=True))
    needed, rows = need(settled), settled.micro_batch or 1
    what = f"{_format_rows(rows)} of {settled.length} tokens at a time"
    if needed > _MOST * memory_bytes:
        how = "with" if settled.checkpoint_activations else "without"
        recompute = "" if settled.checkpoint_activations else "no-"
        raise SpecError(
            f"this training run does not fit: {what} {how} activation checkpointing "
            f"would need {describe(needed)}",
            hint=f"options that use less memory: {suggest_smaller(settled)}; --micro-batch {rows} "
            f"--{recompute}checkpoint-activations tries it without this estimate",
        )
    if settled.checkpoint_activations != options.checkpoint_activations:
        say(
            f"activation checkpointing is on: without it {_format_rows(kept.micro_batch or 1)} at a time "
            f"would need {describe(need(kept))}; steps take up to a third longer"
        )
    before = options.micro_batch or 1
    if rows < before:
        share = _count_share(options, shape)
        would = need(replace(settled, micro_batch=before))
        say(
            f"processing {_format_rows(rows)} at a time, because {before} would need {describe(would)}; "
            f"a step takes {-(-share // rows)} passes instead of {-(-share // before)}"
        )
    if settled != options:
        say(f"{what} should need {describe(needed)}")
    if needed > _USABLE * memory_bytes:
        say(f"this may not fit; options that use less memory: {suggest_smaller(settled)}")
    return settled


def _format_rows(rows: int) -> str:
    return "one row" if rows == 1 else f"{rows} rows"


def _count_share(options: LlmOptions, shape: Shape) -> int:
    """Return the number of rows that each rank processes per step."""
    return max(1, -(-options.samples_per_step // shape.data_ranks))


def fit_rows(rows: int, *, estimate: Callable[[int], int], memory_bytes: int) -> int:
    """Return the rows, halved until the estimate fits, but at least one."""
    while rows > 1 and estimate(rows) > _USABLE * memory_bytes:
        rows //= 2
    return rows


def suggest_smaller(options: LlmOptions) -> str:
    """Return the options that would need less memory and are not in use yet."""
    rows = options.micro_batch or 1
    suggestions = {
        f"--micro-batch {rows // 2}": rows > 1,
        "--checkpoint-activations": not options.checkpoint_activations,
        "--optimizer adamw8bit": not options.lora and options.optimizer == "adamw",
        "--lora 16": not options.lora,
        "--strategy fsdp over more GPUs": options.strategy == "ddp",
        "a smaller --length": True,
    }
    return ", ".join(flag for flag, is_possible in suggestions.items() if is_possible)


def _count_layer(config: LlamaConfig, options: LlmOptions, *, is_joined: bool) -> int:
    """Return how many values per token a layer keeps from its forward pass to its backward pass."""
    layer = 4 * config.hidden_size + 3 * (config.query_size + config.key_size)
    layer += (2 if is_joined else 3) * config.mlp_size
    for num_adapters in _ADAPTER_GROUPS:  # the adapters' inner values, and a copy of them
        layer += 2 * round_up(num_adapters * options.lora)
    return layer


def _count_adapters(config: LlamaConfig, options: LlmOptions) -> int:
    sides = 7 * config.hidden_size + 2 * (config.query_size + config.key_size) + 3 * config.mlp_size
    return options.lora * config.num_layers * sides
