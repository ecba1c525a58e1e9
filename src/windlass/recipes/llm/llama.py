"""A Llama in plain PyTorch: RMS norms, rotary positions, grouped attention, a gated MLP, a tied or own head.

Modules and weights have the names that Hugging Face gives them, so weights, adapters and plans that name
layers fit both. Weights may be float32 while everything is computed in bfloat16: each layer casts what it
uses. The loss is computed inside `forward`, so that DDP and FSDP see the head's gradient like any other.

Attention is causal, within documents where several are packed into one row. Documents are told by offsets:
where each begins in the rows laid end to end, and the end of the last, as often as there is room. Without
offsets every row is one document. Which kernel computes it is decided here and nowhere else: attention of
varying lengths where torch has it for this device, else a mask.

Rotary positions (with the scaling of Llama 3.1) are computed from the config at each step rather than kept in
buffers, which a model made on the meta device or loaded from a checkpoint would lose. Halves are rotated as
in Hugging Face's weights, not pairs.
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

# cuDNN's takes two thirds of flash's time on an H200 (benchmarks.md); torch itself tries flash first
_FASTEST_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
_FEWEST_OFFSETS = 64  # a fixed shape, so that compiled code is compiled once
_MOST_VARIANTS = 128


def pad_offsets(starts: Tensor) -> Tensor:
    """Offsets in as many places as the next power of two, filled up with documents of no tokens."""
    size = max(_FEWEST_OFFSETS, 1 << (len(starts) - 1).bit_length())
    return functional.pad(starts, (0, size - len(starts)), value=int(starts[-1]))


def make_mask(offsets: Tensor, rows: int, length: int) -> Tensor:
    """Which token sees which, as (rows, 1, length, length): those before it in its own document."""
    places = torch.arange(rows * length, device=offsets.device)
    documents = torch.bucketize(places, offsets[1:], right=True).view(rows, length)
    order = torch.arange(length, device=offsets.device)
    is_same = documents[:, :, None] == documents[:, None, :]
    return (is_same & (order[:, None] >= order[None, :]))[:, None]


def has_varlen(device: torch.device) -> bool:
    """Whether packed rows are computed without a mask on this device."""
    return device.type == "cuda" and _varlen() is not None


def attend(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, offsets: Tensor | None
) -> Tensor:
    """Attention over (rows, length, heads, head_size); key and value may have fewer heads.

    offsets: of the documents, where `has_varlen`; mask: elsewhere; neither: one document a row.
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
        raise RuntimeError("this torch has no attention of varying lengths; pass a mask")
    rows, length, _, _ = query.shape
    flat = [x.flatten(0, 1) for x in (query, key, value)]
    out: Tensor = varlen(*flat, offsets, length)
    return out.unflatten(0, (rows, length))


@functools.cache
def _varlen() -> Callable[..., Any] | None:
    """Torch's attention of varying lengths, causal, for grouped heads; it came with 2.10."""
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
        # before it had the flag, it took fewer heads of key and value unasked
        options = causal if key.shape[1] == query.shape[1] else causal | groups
        return varlen_attn(query, key, value, offsets, offsets, length, length, **options)

    return call


def make_rope(config: LlamaConfig, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin for positions (rows, length), as (rows, length, 1, head_size / 2) in float32."""
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
    """Slow rotations are stretched, fast ones are kept, and those between are blended."""
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
    """Where the tokens of a step stand: their rotations, and which of them see each other.

    No tuple, since FSDP would cast tensors that it finds in one.
    """

    def __init__(
        self, rope: tuple[Tensor, Tensor], mask: Tensor | None, offsets: Tensor | None
    ) -> None:
        self.rope, self.mask, self.offsets = rope, mask, offsets


class RMSNorm(nn.Module):
    """Root mean square normalisation, in float32."""

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
        groups = heads.shape[2] // (self.group_size + 2)  # fewer where heads are spread over ranks
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
    """One layer: what is sharded, compiled and checkpointed as a whole."""

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
    """Embedding, layers and the last norm."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.compute_dtype: torch.dtype | None = None  # None: that of the weights

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
    """The language model: logits, or the loss where labels are given."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        self.lm_head = CastLinear(config.hidden_size, config.vocab_size)
        self.tie()

    def tie(self) -> None:
        """Let head and embedding be one weight, if they are to be; again after weights were replaced."""
        if self.config.is_tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def init_weights(self, *, seed: int = 0) -> None:
        """Random weights, as before a pre-training."""
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
        """The logits of tokens (rows, length); with labels, `scale` times the summed loss.

        positions: (rows, length), from 0 in each document; 0, 1, 2, ... unless given.
        offsets: of documents packed into the rows, see `attend`.
        labels: (rows, length), shifted already: what is to follow each token, or -100.
        """
        hidden = self.model(tokens, positions, offsets)
        if labels is None:
            logits: Tensor = self.lm_head(hidden)
            return logits
        return linear_cross_entropy(hidden, self.lm_head.weight, labels, scale=scale)

    def compile_blocks(self, **options: Any) -> None:
        """Compile each layer: one compilation serves all, names stay, and hooks of FSDP run outside of it.

        And the last norm, which is a dozen kernels otherwise, and half a percent of a step.
        """
        _allow_variants()
        for part in (*self.model.layers, self.model.norm):
            part.forward = torch.compile(
                part.forward, **{"dynamic": False, "fullgraph": True, **options}
            )

    def tensor_parallel_plan(self) -> dict[str, Any]:
        """How the layers are split over the ranks of a tensor-parallel axis."""
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
    """Have layers compiled for as many kinds of calls as there are, where torch would fail at the ninth.

    Each number of rows is one, each power of two that documents are padded to, training and validation; and
    below adapters the first layer, whose input has no gradient.
    """
    from torch._dynamo import config

    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    setattr(config, limit, max(_MOST_VARIANTS, getattr(config, limit)))
