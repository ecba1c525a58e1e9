"""Linear layers whose weights may be wider than what is computed, alone and several at once.

Layers with one input are one matmul: their weights are joined while they are cast, which costs nothing more
than the cast; adapters of ours are part of it (`llm_lora`), and weights below them may lie joined already
(`llm_frozen`). Layers that somebody else has wrapped (a tensor-parallel plan, adapters of another kind) are
called one by one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from windlass.recipes.llm_fp8 import can_fp8, fp8_linear
from windlass.recipes.llm_lora import (
    Adapter,
    adapted_linear,
    fp8_adapted_linear,
    join_adapters,
    join_matrix,
)


class CastLinear(nn.Linear):
    """A linear layer without bias, in the dtype of its input; in float8 when told so."""

    is_fp8 = False
    joined: Tensor | None = None  # of a frozen one that is the first with its input: `llm_frozen`

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__(num_in, num_out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.to(x.dtype)
        return fp8_linear(x, weight) if self.is_fp8 else functional.linear(x, weight)


def project(x: Tensor, *layers: nn.Module) -> Tensor:
    """What each of the layers makes of x, one after the other in the last dimension."""
    plain = [find_plain(layer) for layer in layers]
    known = [layer for layer in plain if layer is not None]
    if len(known) < len(layers):
        return _join([layer(x) for layer in layers], dim=-1)
    adapters = [find_adapter(layer) for layer in layers]
    is_fp8 = all(layer.is_fp8 for layer in known)
    if all(adapter is None for adapter in adapters):
        weight = _join_weights(known, x.dtype)
        return fp8_linear(x, weight) if is_fp8 else functional.linear(x, weight)
    adapter = join_adapters(adapters, [layer.out_features for layer in known])
    if is_fp8:
        return fp8_adapted_linear(x, _join_weights(known, x.dtype), adapter)
    joined = known[0].joined
    if joined is None or joined.dtype != x.dtype:
        joined = join_matrix(_join_weights(known, x.dtype), adapter)
    return adapted_linear(x, joined, adapter)


def join_with_adapters(model: nn.Module, adapter: str) -> None:
    """Let layers on which peft has put this adapter be computed together with it."""
    for layer in model.modules():
        if type(getattr(layer, "base_layer", None)) is CastLinear:
            layer.joined_adapter = adapter


def use_fp8(model: nn.Module, *, but: frozenset[str] = frozenset({"lm_head"})) -> int:
    """Compute the model's linear layers in float8, all but those of these names; how many they are."""
    chosen = [
        layer
        for name, layer in model.named_modules()
        if isinstance(layer, CastLinear)
        and name.rpartition(".")[2] not in but
        and can_fp8(layer.in_features, layer.out_features)
    ]
    for layer in chosen:
        layer.is_fp8 = True
    return len(chosen)


def _join_weights(layers: list[CastLinear], dtype: torch.dtype) -> Tensor:
    return _join([layer.weight.to(dtype) for layer in layers], dim=0)


def _join(tensors: list[Tensor], *, dim: int) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim=dim)


def find_plain(layer: nn.Module) -> CastLinear | None:
    """The layer itself, or the one below an adapter of ours; None for what has to be called."""
    inner = layer.base_layer if hasattr(layer, "joined_adapter") else layer
    if type(inner) is not CastLinear or hasattr(inner.weight, "device_mesh"):  # split by a plan
        return None
    return inner


def find_adapter(layer: Any) -> Adapter | None:
    """The adapter of ours that is on a layer."""
    name = getattr(layer, "joined_adapter", None)
    if name is None:
        return None
    return Adapter(
        layer.lora_A[name].weight, layer.lora_B[name].weight * float(layer.scaling[name])
    )
