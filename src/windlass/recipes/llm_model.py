"""A Llama in plain PyTorch: RMS norms, rotary positions, grouped attention, a gated MLP, a tied or own head.

Modules and weights have the names that Hugging Face gives them, so weights, adapters and plans that name
layers fit both. Weights may be float32 while everything is computed in bfloat16: each layer casts what it
uses. The loss is computed inside `forward`, so that DDP and FSDP see the head's gradient like any other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from windlass.recipes.llm_adapted_mlp import adapted_mlp, can_join
from windlass.recipes.llm_attention import attend, has_varlen, make_mask
from windlass.recipes.llm_config import LlamaConfig
from windlass.recipes.llm_linear import CastLinear, find_adapted, project, project_adapted
from windlass.recipes.llm_loss import linear_cross_entropy
from windlass.recipes.llm_rope import make_rope, rotate
from windlass.recipes.llm_swiglu import swiglu

_MOST_VARIANTS = 128


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
        offsets: of documents packed into the rows, see `llm_attention`.
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
