"""Linear layers whose weights may be wider than what is computed, alone and several at once.

Layers with one input are one matmul: their weights are joined while they are cast, which costs nothing more
than the cast. Layers that somebody has wrapped (an adapter, a tensor-parallel plan) are called one by one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from windlass.recipes.llm_fp8 import can_fp8, fp8_linear


class CastLinear(nn.Linear):
    """A linear layer without bias, in the dtype of its input; in float8 when told so."""

    is_fp8 = False

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__(num_in, num_out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.to(x.dtype)
        return fp8_linear(x, weight) if self.is_fp8 else functional.linear(x, weight)


def project(x: Tensor, *layers: nn.Module) -> Tensor:
    """What each of the layers makes of x, one after the other in the last dimension."""
    if not all(_is_plain(layer) for layer in layers):
        return torch.cat([layer(x) for layer in layers], dim=-1)
    weight = torch.cat([layer.weight.to(x.dtype) for layer in layers])
    return fp8_linear(x, weight) if layers[0].is_fp8 else functional.linear(x, weight)


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


def _is_plain(layer: nn.Module) -> bool:
    return type(layer) is CastLinear and not hasattr(layer.weight, "device_mesh")  # split by a plan
