"""A Llama in plain PyTorch: RMS norms, rotary positions, grouped attention, a gated MLP, a tied or own head.

Modules and weights use Hugging Face's names, so weights, adapters and plans that name layers fit both.
Weights may be float32 while the computation is in bfloat16, because each layer casts the weights it uses. The
loss is computed inside `forward`, so that DDP and FSDP see the head's gradient like any other.

Attention is causal, and limited to each document if several are packed into one row. Offsets mark the
documents: the start of each in the concatenated rows, then the end of the last, repeated as padding.
Without offsets every row is one document. This module alone chooses the attention kernel. It uses
variable-length attention if torch has it for the device, and a mask otherwise.

Rotary positions (with the scaling of Llama 3.1) are computed from the config in each step. Buffers would be
lost in a model made on the meta device or loaded from a checkpoint. Rotation works on halves, as in Hugging
Face's weights, not on pairs.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from windlass.recipes.llm.cross_entropy import linear_cross_entropy
from windlass.recipes.llm.gated_mlp import adapted_mlp, can_join, swiglu
from windlass.recipes.llm.linear_layers import CastLinear, find_adapted, project, project_adapted
from windlass.recipes.llm.llama_config import LlamaConfig, RopeScaling

# cuDNN's kernel takes two thirds of flash's time on an H200 (benchmarks.md), but torch tries flash first
_FASTEST_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
_FEWEST_OFFSETS = 64  # a fixed minimum shape avoids recompilation
_MOST_VARIANTS = 128


def pad_offsets(starts: Tensor) -> Tensor:
    """Pad offsets to the next power of two with empty documents."""
    size = max(_FEWEST_OFFSETS, 1 << (len(starts) - 1).bit_length())
    return functional.pad(starts, (0, size - len(starts)), value=int(starts[-1]))


def make_mask(offsets: Tensor, rows: int, length: int) -> Tensor:
    """Return which tokens each token attends to, as (rows, 1, length, length).

    A token attends to itself and to earlier tokens of its document.
    """
    places = torch.arange(rows * length, device=offsets.device)
    documents = torch.bucketize(places, offsets[1:], right=True).view(rows, length)
    order = torch.arange(length, device=offsets.device)
    is_same = documents[:, :, None] == documents[:, None, :]
    return (is_same & (order[:, None] >= order[None, :]))[:, None]


def has_varlen(device: torch.device) -> bool:
    """Return whether packed rows need no mask on this device."""
    return device.type == "cuda" and _varlen() is not None


def attend(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, offsets: Tensor | None
) -> Tensor:
    """Compute causal attention over (rows, length, heads, head_size).

    Key and value may have fewer heads. Pass `offsets` of the documents if `has_varlen`, or else `mask`.
    Without both, each row is one document.
    """
    if offsets is not None:
        return _attend_varlen(query, key, value, offsets)
    is_grouped = key.shape[2] != query.shape[2]
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    if mask is not None or not query.is_cuda:
        out = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=is_grouped
        )
    else:
        with sdpa_kernel(_FASTEST_FIRST, set_priority=True):
            out = functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=is_grouped
            )
    return out.transpose(1, 2)


def _attend_varlen(query: Tensor, key: Tensor, value: Tensor, offsets: Tensor) -> Tensor:
    varlen = _varlen()
    if varlen is None:
        raise RuntimeError("this version of torch has no variable-length attention; pass a mask")
    rows, length, _, _ = query.shape
    flat = [x.flatten(0, 1) for x in (query, key, value)]
    out: Tensor = varlen(*flat, offsets, length)
    return out.unflatten(0, (rows, length))


@functools.cache
def _varlen() -> Callable[..., Any] | None:
    """Return torch's causal variable-length attention for grouped heads, or None before torch 2.10."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    known = inspect.signature(varlen_attn).parameters
    causal: dict[str, Any] = (
        {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
    )
    groups: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in known else {}

    def call(query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, length: int) -> Any:
        # torch versions without enable_gqa always accept fewer key and value heads
        options = causal if key.shape[1] == query.shape[1] else causal | groups
        return varlen_attn(query, key, value, offsets, offsets, length, length, **options)

    return call


def make_rope(config: LlamaConfig, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return cos and sin of positions (rows, length), as (rows, length, 1, head_size / 2) in float32."""
    angles = positions[:, :, None, None].float() * _make_frequencies(config, positions.device)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate (rows, length, heads, head_size) by its positions, in float32."""
    cos, sin = rope
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def _make_frequencies(config: LlamaConfig, device: torch.device) -> Tensor:
    exponents = torch.arange(0, config.head_size, 2, device=device).float() / config.head_size
    frequencies = 1.0 / config.rope_theta**exponents
    return _scale(frequencies, config.rope_scaling) if config.rope_scaling else frequencies


def _scale(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Stretch slow rotations, keep fast ones, and blend those in between."""
    lengths = 2 * math.pi / frequencies
    low = scaling.original_length / scaling.low_freq_factor
    high = scaling.original_length / scaling.high_freq_factor
    share = (scaling.original_length / lengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    stretched = frequencies / scaling.factor
    blended = (1 - share) * stretched + share * frequencies
    between = (lengths <= low) & (lengths >= high)
    return torch.where(between, blended, torch.where(lengths > low, stretched, frequencies))


class Places:
    """Positions of a step's tokens: their rotations, and which tokens attend to each other.

    Not a tuple, because FSDP would cast tensors inside one.
    """

    def __init__(
        self, rope: tuple[Tensor, Tensor], mask: Tensor | None, offsets: Tensor | None
    ) -> None:
        self.rope, self.mask, self.offsets = rope, mask, offsets


class RMSNorm(nn.Module):
    """Root mean square normalization, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return (wide * self.weight.float()).to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    one_input = (("q_proj", "k_proj", "v_proj"), ("o_proj",))  # layers that are called together

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        width, head_size = config.hidden_size, config.head_size
        self.head_size = head_size
        self.group_size = config.num_heads // config.num_kv_heads
        self.q_proj = CastLinear(width, config.num_heads * head_size)
        self.k_proj = CastLinear(width, config.num_kv_heads * head_size)
        self.v_proj = CastLinear(width, config.num_kv_heads * head_size)
        self.o_proj = CastLinear(config.num_heads * head_size, width)

    def forward(self, x: Tensor, places: Places) -> Tensor:
        rows, length, _ = x.shape
        heads = project(x, self.q_proj, self.k_proj, self.v_proj)
        heads = heads.view(rows, length, -1, self.head_size)
        groups = heads.shape[2] // (self.group_size + 2)  # fewer if heads are sharded over ranks
        query, key, value = heads.split([groups * self.group_size, groups, groups], dim=2)
        query, key = rotate(query, places.rope), rotate(key, places.rope)
        out = attend(query, key, value, mask=places.mask, offsets=places.offsets)
        return project(out.reshape(rows, length, -1), self.o_proj)


class MLP(nn.Module):
    """The gated MLP."""

    one_input = (("gate_proj", "up_proj"), ("down_proj",))

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = CastLinear(config.hidden_size, config.mlp_size)
        self.up_proj = CastLinear(config.hidden_size, config.mlp_size)
        self.down_proj = CastLinear(config.mlp_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        first = find_adapted(x.dtype, self.gate_proj, self.up_proj)
        second = find_adapted(x.dtype, self.down_proj)
        if first is not None and second is not None and can_join(x, first, second):
            return adapted_mlp(x, first, second)
        both = project_adapted(x, first, self.gate_proj, self.up_proj)
        return project_adapted(swiglu(both), second, self.down_proj)


class Block(nn.Module):
    """One layer, which is sharded, compiled and checkpointed as a unit."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, places: Places) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), places)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Decoder(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.compute_dtype: torch.dtype | None = None  # None means the dtype of the weights

    def forward(self, tokens: Tensor, positions: Tensor | None, offsets: Tensor | None) -> Tensor:
        rows, length = tokens.shape
        if positions is None:
            positions = torch.arange(length, device=tokens.device)[None]
        mask = None
        if offsets is not None and not has_varlen(tokens.device):
            mask, offsets = make_mask(offsets, rows, length), None
        places = Places(make_rope(self.config, positions), mask, offsets)
        x: Tensor = self.embed_tokens(tokens)
        x = x if self.compute_dtype is None else x.to(self.compute_dtype)
        for block in self.layers:
            x = block(x, places)
        out: Tensor = self.norm(x)
        return out


class Llama(nn.Module):
    """Language model that returns logits, or the loss if labels are given."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        self.lm_head = CastLinear(config.hidden_size, config.vocab_size)
        self.tie()

    def tie(self) -> None:
        """Share one weight between head and embedding if configured. Call it after replacing weights."""
        if self.config.is_tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def init_weights(self, *, seed: int = 0) -> None:
        """Initialize random weights, as for pre-training."""
        rng = torch.Generator(device=self.lm_head.weight.device).manual_seed(seed)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=self.config.init_std, generator=rng)
            elif isinstance(module, RMSNorm):
                nn.init.ones_(module.weight)

    def forward(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        offsets: Tensor | None = None,
        labels: Tensor | None = None,
        scale: float | Tensor = 1.0,
    ) -> Tensor:
        """Return the logits of tokens (rows, length), or `scale` times the summed loss if labels are given.

        positions: (rows, length), from 0 in each document (default: 0, 1, 2, ... in each row).
        offsets: offsets of the documents packed into the rows (see `attend`).
        labels: (rows, length), already shifted: the next token of each token, or -100.
        """
        hidden = self.model(tokens, positions, offsets)
        if labels is None:
            logits: Tensor = self.lm_head(hidden)
            return logits
        return linear_cross_entropy(hidden, self.lm_head.weight, labels, scale=scale)

    def compile_blocks(self, **options: Any) -> None:
        """Compile each layer and the final norm.

        One compilation serves all layers, names stay the same, and FSDP's hooks run outside of it.
        Uncompiled, the norm is a dozen kernels and half a percent of a step.
        """
        _allow_variants()
        for part in (*self.model.layers, self.model.norm):
            part.forward = torch.compile(
                part.forward, **{"dynamic": False, "fullgraph": True, **options}
            )

    def tensor_parallel_plan(self) -> dict[str, Any]:
        """Return how a tensor-parallel axis shards the layers."""
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

        kinds = {name: ColwiseParallel() for name in ("q_proj", "k_proj", "v_proj")}
        kinds |= {"gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel()}
        kinds |= {"o_proj": RowwiseParallel(), "down_proj": RowwiseParallel()}
        return {
            name: kinds[kind]
            for name, layer in self.model.named_modules(prefix="model")
            if isinstance(layer, nn.Linear) and (kind := name.rpartition(".")[2]) in kinds
        }


def _allow_variants() -> None:
    """Raise torch's recompilation limit, which fails at the ninth variant.

    A variant exists for each number of rows, each power of two in the padded offsets, and training and
    validation. With adapters the first layer is one more variant, because its input has no gradient.
    """
    from torch._dynamo import config

    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    setattr(config, limit, max(_MOST_VARIANTS, getattr(config, limit)))
