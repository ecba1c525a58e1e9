"""Linear layers whose weights may be wider than what is computed: alone, at once, and with adapters (LoRA).

Layers with one input are one matmul: their weights are joined while they are cast, which costs nothing more
than the cast; adapters of ours are part of it, and frozen weights below them may lie joined already. Layers
that somebody else has wrapped (a tensor-parallel plan, adapters of another kind) are called one by one.

Adapters are a few more columns of a matmul's sides: `x W' + (x A') B'` is `[x, x A'] [W, B]'`, a sum over
more columns; or it is the first columns of `x [W; A]'` plus what B makes of the others. Backward, with g for
x, the same matrix serves the other way: `g [W, B]`, and `[g, g B] [W; A]`. Layers that widen take the first
way and others the second, so that what is copied or added is always on the narrow side. W is frozen and has
no gradient. Called one by one, layers and adapters read and write every output several times, which costs
more than their arithmetic.

Frozen weights are kept as their matmuls read them (`FrozenGroup`): each layer's weight is a part of one
matrix, so nothing is held twice, and no pass joins weights anew, which would read and write the whole model
each time. What of the adapters lies in it is written before each forward pass. For weights that are whole on
this rank; neither sharded ones nor ones in float8.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from windlass.recipes.llm.cross_entropy import widen
from windlass.recipes.llm.fp8 import can_fp8, fp8_linear, fp8_matmul
from windlass.recipes.llm.kernel_launch import round_up


class Adapter(NamedTuple):
    """What is added to a layer's weight: up @ down."""

    down: Tensor  # (rank, in)
    up: Tensor  # (out, rank), its scale in it

    @property
    def is_widening(self) -> bool:
        return is_widening(num_in=self.down.shape[1], num_out=self.up.shape[0])


def is_widening(*, num_in: int, num_out: int) -> bool:
    """Whether adapters lie beside a weight of this size, as more columns, or below it, as more rows."""
    return num_out > num_in


class AdapterColumns(NamedTuple):
    """Where the columns of several layers' adapters lie among those of one, and how many these are."""

    starts: list[int]
    ranks: list[int]
    width: int


class Adapted(NamedTuple):
    """Layers with one input and their adapters, as one."""

    joined: Tensor  # what `join_matrix` makes of their weight and adapter
    adapter: Adapter
    columns: AdapterColumns


def place_columns(adapters: list[Adapter | None]) -> AdapterColumns:
    """Columns for these adapters, one after the other."""
    ranks = [0 if adapter is None else adapter.down.shape[0] for adapter in adapters]
    *starts, total = itertools.accumulate(ranks, initial=0)
    return AdapterColumns(starts, ranks, round_up(total))


def join_adapters(adapters: list[Adapter | None], num_outs: list[int]) -> Adapter:
    """The adapters of several layers with one input, as one of the layer that they are together."""
    present = [adapter for adapter in adapters if adapter is not None]
    starts, ranks, width = place_columns(adapters)
    down = torch.cat([adapter.down for adapter in present])
    down = functional.pad(down, (0, 0, 0, width - sum(ranks)))
    rows = []
    for adapter, rank, start, num_out in zip(adapters, ranks, starts, num_outs, strict=True):
        up = down.new_zeros(num_out, 0) if adapter is None else adapter.up
        rows.append(functional.pad(up, (start, width - start - rank)))
    return Adapter(down, torch.cat(rows))


def join_matrix(weight: Tensor, adapter: Adapter) -> Tensor:
    """The frozen weight and what of its adapter lies beside or below it; nothing in it is to learn."""
    down, up = (side.detach().to(weight.dtype) for side in adapter)
    return torch.cat([weight, up], dim=1) if adapter.is_widening else torch.cat([weight, down])


def adapted_linear(x: Tensor, joined: Tensor, adapter: Adapter) -> Tensor:
    """`x @ (weight + adapter.up @ adapter.down).T`, for what `join_matrix` makes of weight and adapter."""
    return _apply(_AdaptedLinear, x, joined, adapter)


def fp8_adapted_linear(x: Tensor, weight: Tensor, adapter: Adapter) -> Tensor:
    """The same where the frozen weight is multiplied in float8: adapters stay as they are, beside it."""
    return _apply(_Fp8AdaptedLinear, x, weight, adapter)


def _apply(kind: Any, x: Tensor, matrix: Tensor, adapter: Adapter) -> Tensor:
    down, up = (side.to(x.dtype) for side in adapter)
    out: Tensor = kind.apply(x.reshape(-1, x.shape[-1]), matrix.detach(), down, up)
    return out.reshape(*x.shape[:-1], up.shape[0])


class _AdaptedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, joined: Tensor, down: Tensor, up: Tensor) -> Tensor:
        out, x, inner = multiply(x, joined, Adapter(down, up))
        ctx.save_for_backward(x, inner, joined, down, up)
        return out

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        x, inner, joined, down, up = ctx.saved_tensors
        if not ctx.needs_input_grad[0]:
            return None, None, (outer[0] @ up).t() @ x, outer[0].t() @ inner
        x_grad, gradient, inner_grad = multiply_back(outer[0], joined, Adapter(down, up))
        return x_grad, None, inner_grad.t() @ x, gradient.t() @ inner


def multiply(x: Tensor, joined: Tensor, adapter: Adapter) -> tuple[Tensor, Tensor, Tensor]:
    """What `adapted_linear` returns; x, and `x down'`: what its adapter learns from."""
    if adapter.is_widening:
        return _sum_over_more(x, adapter.down.t(), joined.t())
    out, inner = _add_beside(x, joined.t(), adapter.up.t())
    return out, x, inner


def multiply_back(
    gradient: Tensor, joined: Tensor, adapter: Adapter
) -> tuple[Tensor, Tensor, Tensor]:
    """The input's gradient; the gradient that was given, and the one of `x down'`."""
    if not adapter.is_widening:
        return _sum_over_more(gradient, adapter.up, joined)
    x_grad, inner_grad = _add_beside(gradient, joined, adapter.down)
    return x_grad, gradient, inner_grad


class _Fp8AdaptedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, down: Tensor, up: Tensor) -> Tensor:
        inner = x @ down.t()
        ctx.save_for_backward(x, inner, weight, down, up)
        return _add(fp8_matmul(x, weight.t()), inner @ up.t())

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = outer
        x, inner, weight, down, up = ctx.saved_tensors
        inner_grad = gradient @ up
        x_grad = None
        if ctx.needs_input_grad[0]:
            x_grad = _add(fp8_matmul(gradient, weight), inner_grad @ down)
        return x_grad, None, inner_grad.t() @ x, gradient.t() @ inner


def _sum_over_more(x: Tensor, right: Tensor, joined: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`[x, x right] joined`; and x and `x right`, as they lie beside each other."""
    wide = torch.cat([x, x @ right], dim=1)
    x, inner = wide.split([x.shape[1], right.shape[1]], dim=1)
    return wide @ joined, x, inner


def _add_beside(x: Tensor, joined: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """The first columns of `x joined` plus the others times `right`; and the others."""
    out, inner = (x @ joined).split([right.shape[1], right.shape[0]], dim=1)
    inner = inner.contiguous()  # what is kept of it must not keep all
    return _add(out, inner @ right), inner


def _add(first: Tensor, second: Tensor) -> Tensor:
    """In a wider type: the compiler makes the sum part of what reads it then, else an `addmm` with copies."""
    dtype = widen(first)
    return (first.to(dtype) + second.to(dtype)).to(first.dtype)


class CastLinear(nn.Linear):
    """A linear layer without bias, in the dtype of its input; in float8 when told so."""

    is_fp8 = False
    joined: Tensor | None = None  # of a frozen one that is the first with its input: `FrozenGroup`

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
