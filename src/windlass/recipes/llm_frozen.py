"""Frozen weights below adapters, kept as their matmuls read them: one matrix for all layers of one input.

Each layer's weight is a part of that matrix, so nothing is held twice, and no step joins weights anew, which
would read and write the whole model each way. What of the adapters lies in it (`llm_lora`) is written before
each forward pass. For weights that are whole on this rank; neither sharded ones nor ones in float8.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from windlass.recipes.llm_linear import CastLinear, find_adapter, find_plain
from windlass.recipes.llm_lora import find_room, is_widening


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frozen:
    """The layers of one input and the matrix that their weights are parts of."""

    layers: list[Any]
    plain: list[CastLinear]
    joined: Tensor
    places: list[Tensor]  # in the matrix: of each layer's adapter, nothing where it has none
    is_beside: bool  # whether adapters are columns beside the weights, or rows below

    def holds_weights(self) -> bool:
        """Whether the weights are still parts of it: a model that was moved or cast has others."""
        here = self.joined.untyped_storage().data_ptr()
        return all(layer.weight.untyped_storage().data_ptr() == here for layer in self.plain)

    def take_adapters(self) -> None:
        """Write what the adapters are now."""
        for layer, place in zip(self.layers, self.places, strict=True):
            if (adapter := find_adapter(layer)) is not None:
                place.copy_(adapter.up if self.is_beside else adapter.down)


def keep_frozen_joined(model: nn.Module) -> None:
    """From its next forward pass on, keep the model's frozen weights so; where modules name `one_input`."""
    model.register_forward_pre_hook(_prepare)


@torch.no_grad()
def _prepare(model: Any, _args: object) -> None:
    known: list[_Frozen] | None = getattr(model, "frozen", None)
    if known is None or not all(frozen.holds_weights() for frozen in known):
        known = model.frozen = [_lay_out(layers) for layers in _find_layers(model)]
    for frozen in known:
        frozen.take_adapters()


def _find_layers(model: nn.Module) -> Iterator[list[Any]]:
    """Layers with one input, of which some have adapters, and all can be computed as one."""
    for module in model.modules():
        for names in getattr(module, "one_input", ()):
            layers = [getattr(module, name) for name in names]
            is_plain = all(find_plain(layer) is not None for layer in layers)
            if is_plain and any(find_adapter(layer) is not None for layer in layers):
                yield layers


def _lay_out(layers: list[Any]) -> _Frozen:
    """Move weights into a matrix with room for their adapters."""
    plain = [layer for layer in map(find_plain, layers) if layer is not None]
    adapters = [find_adapter(layer) for layer in layers]
    ranks = [0 if adapter is None else adapter.down.shape[0] for adapter in adapters]
    room = find_room(ranks)
    num_in, num_out = plain[0].in_features, sum(layer.out_features for layer in plain)
    is_beside = is_widening(num_in=num_in, num_out=num_out)
    shape = (num_out, num_in + room.width) if is_beside else (num_out + room.width, num_in)
    joined = plain[0].weight.new_zeros(shape)
    places, row = [], 0
    for layer, start, rank in zip(plain, room.starts, ranks, strict=True):
        part = joined[row : row + layer.out_features, :num_in]
        part.copy_(layer.weight)
        layer.weight.data = part
        columns = joined[row : row + layer.out_features, num_in + start :][:, :rank]
        below = joined[num_out + start :][:rank]
        places.append(columns if is_beside else below)
        row += layer.out_features
    plain[0].joined = joined
    return _Frozen(layers=layers, plain=plain, joined=joined, places=places, is_beside=is_beside)
