"""Linear layers whose weights may be wider than what is computed, alone and several at once.

Layers with one input are one matmul: their weights are joined while they are cast, which costs nothing more
than the cast; adapters of ours are part of it (`llm_lora`), and weights below them may lie joined already
(`llm_frozen`). Layers that somebody else has wrapped (a tensor-parallel plan, adapters of another kind) are
called one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from windlass.recipes.llm_fp8 import can_fp8, fp8_linear
from windlass.recipes.llm_lora import (
    Adapted,
    Adapter,
    adapted_linear,
    fp8_adapted_linear,
    join_adapters,
    join_matrix,
    place_columns,
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
    return project_adapted(x, find_adapted(x.dtype, *layers), *layers)


def project_adapted(x: Tensor, adapted: Adapted | None, *layers: nn.Module) -> Tensor:
    """The same, where it is known what `find_adapted` makes of the layers."""
    if adapted is not None:
        return adapted_linear(x, adapted.joined, adapted.adapter)
    plain = _find_all_plain(layers)
    if plain is None:
        return _join([layer(x) for layer in layers], dim=-1)
    weight = _join_weights(plain, x.dtype)
    if not all(layer.is_fp8 for layer in plain):
        return functional.linear(x, weight)
    adapters = [find_adapter(layer) for layer in layers]
    if all(adapter is None for adapter in adapters):
        return fp8_linear(x, weight)
    return fp8_adapted_linear(x, weight, join_adapters(adapters, _list_sizes(plain)))


def find_adapted(dtype: torch.dtype, *layers: nn.Module) -> Adapted | None:
    """Layers with one input as `adapted_linear` takes them; None without adapters of ours, and in float8."""
    plain = _find_all_plain(layers)
    if plain is None or all(layer.is_fp8 for layer in plain):
        return None
    adapters = [find_adapter(layer) for layer in layers]
    if all(adapter is None for adapter in adapters):
        return None
    adapter = join_adapters(adapters, _list_sizes(plain))
    joined = plain[0].joined
    if joined is None or joined.dtype != dtype:
        joined = join_matrix(_join_weights(plain, dtype), adapter)
    return Adapted(joined, adapter, place_columns(adapters))


def _find_all_plain(layers: Sequence[nn.Module]) -> list[CastLinear] | None:
    """All of the layers without their adapters; None if one of them has to be called."""
    plain = [layer for layer in map(find_plain, layers) if layer is not None]
    return plain if len(plain) == len(layers) else None


def _list_sizes(layers: list[CastLinear]) -> list[int]:
    return [layer.out_features for layer in layers]


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


def write_adapter(layer: Any, place: Tensor, *, is_up: bool) -> None:
    """Write one side of the adapter that is on a layer, if one is, to where it is kept; in one kernel."""
    name = getattr(layer, "joined_adapter", None)
    if name is None:
        return
    if is_up:
        torch.mul(layer.lora_B[name].weight, float(layer.scaling[name]), out=place)
    else:
        place.copy_(layer.lora_A[name].weight)
