"""Frozen weights below adapters, kept as their matmuls read them: one matrix for all layers of one input.

Each layer's weight is a part of that matrix, so nothing is held twice, and no pass joins weights anew, which
would read and write the whole model each time. What of the adapters lies in it (`llm_lora`) is written before
each forward pass. For weights that are whole on this rank; neither sharded ones nor ones in float8.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from windlass.recipes.llm_linear import CastLinear, find_adapter, find_plain, write_adapter
from windlass.recipes.llm_lora import is_widening, place_columns


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenGroup:
    """The layers of one input and the matrix that their weights are parts of."""

    layers: list[Any]
    plain: list[CastLinear]
    joined: Tensor
    is_widening: bool  # adapters are columns beside the weights then, else rows below them
    places: list[Tensor]  # in the matrix: of each layer's adapter, nothing where it has none

    def holds_weights(self) -> bool:
        """Whether the weights are still parts of it: a model that was moved or cast has others."""
        here = self.joined.untyped_storage().data_ptr()
        return all(layer.weight.untyped_storage().data_ptr() == here for layer in self.plain)

    def take_adapters(self) -> None:
        """Write what the adapters are now."""
        for layer, place in zip(self.layers, self.places, strict=True):
            write_adapter(layer, place, is_up=self.is_widening)


def keep_frozen_joined(module: nn.Module) -> None:
    """Have a hook before each call of the module keep the frozen weights inside it joined.

    Modules inside say by `one_input` which of their layers are called together. Whoever calls one of them
    past the hook finds the adapters of the call before.
    """
    module.register_forward_pre_hook(_prepare)


def _prepare(module: Any, _args: object) -> None:
    with torch.inference_mode(False), torch.no_grad():
        groups: list[FrozenGroup] | None = getattr(module, "frozen_groups", None)
        if groups is None or not all(group.holds_weights() for group in groups):
            groups = module.frozen_groups = _lay_out_all(module)
        for group in groups:
            group.take_adapters()


def _lay_out_all(module: Any) -> list[FrozenGroup]:
    module.frozen_groups = None  # those of weights that are gone
    groups = [_lay_out(layers) for layers in _find_layers(module)]
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # no matrix fits where a weight was
    return groups


def _find_layers(module: nn.Module) -> Iterator[list[Any]]:
    """Layers with one input, of which some have adapters, and all can be computed as one."""
    for part in module.modules():
        for names in getattr(part, "one_input", ()):
            layers = [getattr(part, name) for name in names]
            is_plain = all(find_plain(layer) is not None for layer in layers)
            if is_plain and any(find_adapter(layer) is not None for layer in layers):
                yield layers


def _lay_out(layers: list[Any]) -> FrozenGroup:
    """Move weights into a matrix that has columns, or rows, for their adapters."""
    plain = [layer for layer in map(find_plain, layers) if layer is not None]
    starts, ranks, width = place_columns([find_adapter(layer) for layer in layers])
    num_in, num_out = plain[0].in_features, sum(layer.out_features for layer in plain)
    is_wide = is_widening(num_in=num_in, num_out=num_out)
    plain[0].joined = None
    shape = (num_out, num_in + width) if is_wide else (num_out + width, num_in)
    joined = plain[0].weight.new_zeros(shape)
    # writing does not count as a change to what a backward pass still needs: it writes what is there
    written = joined.data
    places, row = [], 0
    for layer, start, rank in zip(plain, starts, ranks, strict=True):
        part = joined[row : row + layer.out_features, :num_in]
        part.copy_(layer.weight)
        layer.weight.data = part
        beside = written[row : row + layer.out_features, num_in + start :][:, :rank]
        places.append(beside if is_wide else written[num_out + start :][:rank])
        row += layer.out_features
    plain[0].joined = joined
    return FrozenGroup(
        layers=layers, plain=plain, joined=joined, is_widening=is_wide, places=places
    )
