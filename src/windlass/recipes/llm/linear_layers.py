"""Linear layers that cast their weights to the input's dtype, compute in float8, and join LoRA adapters.

Layers that share an input run as one matmul. Their weights are joined while they are cast, so joining costs
nothing extra. LoRA adapters added by `join_with_adapters` are part of that matmul. Layers with other
wrappers, such as a tensor-parallel plan or other adapters, are called one by one.

An adapter adds columns or rows to a matmul. `x W' + (x A') B'` equals `[x, x A'] [W, B]'`, a sum over more
columns. It also equals the first columns of `x [W; A]'` plus the remaining columns times B'. The backward
pass uses the same matrix with the gradient g in place of x: `g [W, B]`, or `[g, g B] [W; A]`. Widening layers
use the first form and other layers use the second, so that copies and sums are always on the narrow side. W
is frozen and has no gradient. Calling layers and adapters one by one reads and writes every output several
times. That costs more than the arithmetic.

`FrozenGroup` keeps frozen weights in the layout that the matmuls read. Each layer's weight is a view of one
matrix, so nothing is stored twice. Joining the weights in each pass would read and write the whole model.
The adapters are copied into that matrix before each forward pass. This requires complete weights on this
rank, neither sharded nor in float8.
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
    """Low-rank update of a layer's weight: `up @ down`."""

    down: Tensor  # (rank, in)
    up: Tensor  # (out, rank), already scaled

    @property
    def is_widening(self) -> bool:
        return is_widening(num_in=self.down.shape[1], num_out=self.up.shape[0])


def is_widening(*, num_in: int, num_out: int) -> bool:
    """Return whether adapters extend a weight of this size by columns rather than by rows."""
    return num_out > num_in


class AdapterColumns(NamedTuple):
    """Positions of several layers' adapters within the columns of their joined adapter."""

    starts: list[int]
    ranks: list[int]
    width: int


class Adapted(NamedTuple):
    """Layers that share an input, joined into one layer with one adapter."""

    joined: Tensor  # made by `join_matrix` from their weight and adapter
    adapter: Adapter
    columns: AdapterColumns


def place_columns(adapters: list[Adapter | None]) -> AdapterColumns:
    """Assign consecutive columns to the adapters."""
    ranks = [0 if adapter is None else adapter.down.shape[0] for adapter in adapters]
    *starts, total = itertools.accumulate(ranks, initial=0)
    return AdapterColumns(starts, ranks, round_up(total))


def join_adapters(adapters: list[Adapter | None], num_outs: list[int]) -> Adapter:
    """Join the adapters of layers that share an input into one adapter of the joined layer."""
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
    """Join the frozen weight with one side of its adapter. The result is detached from autograd."""
    down, up = (side.detach().to(weight.dtype) for side in adapter)
    return torch.cat([weight, up], dim=1) if adapter.is_widening else torch.cat([weight, down])


def adapted_linear(x: Tensor, joined: Tensor, adapter: Adapter) -> Tensor:
    """Return `x @ (weight + adapter.up @ adapter.down).T`, where `joined` is made by `join_matrix`."""
    return _apply(_AdaptedLinear, x, joined, adapter)


def fp8_adapted_linear(x: Tensor, weight: Tensor, adapter: Adapter) -> Tensor:
    """Compute `adapted_linear` with the frozen weight multiplied in float8, and the adapter in `x.dtype`."""
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
    """Return the output of `adapted_linear`, then x and `x down'`, which the adapter's gradients need."""
    if adapter.is_widening:
        return _sum_over_more(x, adapter.down.t(), joined.t())
    out, inner = _add_beside(x, joined.t(), adapter.up.t())
    return out, x, inner


def multiply_back(
    gradient: Tensor, joined: Tensor, adapter: Adapter
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the input, of the output, and of `x down'`."""
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
    """Return `[x, x right] joined`, then x and `x right` as views of their concatenation."""
    wide = torch.cat([x, x @ right], dim=1)
    x, inner = wide.split([x.shape[1], right.shape[1]], dim=1)
    return wide @ joined, x, inner


def _add_beside(x: Tensor, joined: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Split `x @ joined` into `out` and `inner`, and return `(out + inner @ right, inner)`."""
    out, inner = (x @ joined).split([right.shape[1], right.shape[0]], dim=1)
    inner = inner.contiguous()  # a view would keep the whole product in memory
    return _add(out, inner @ right), inner


def _add(first: Tensor, second: Tensor) -> Tensor:
    """Add in a wider dtype.

    The compiler then fuses the sum into the kernel that reads it. In the narrow dtype it would emit an
    `addmm` with copies.
    """
    dtype = widen(first)
    return (first.to(dtype) + second.to(dtype)).to(first.dtype)


class CastLinear(nn.Linear):
    """Linear layer without bias that computes in the dtype of its input, or in float8 if `is_fp8` is set."""

    is_fp8 = False
    joined: Tensor | None = None  # set by `FrozenGroup` on the first layer of a group

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__(num_in, num_out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.to(x.dtype)
        return fp8_linear(x, weight) if self.is_fp8 else functional.linear(x, weight)


def project(x: Tensor, *layers: nn.Module) -> Tensor:
    """Return the outputs of all layers for x, concatenated in the last dimension."""
    return project_adapted(x, find_adapted(x.dtype, *layers), *layers)


def project_adapted(x: Tensor, adapted: Adapted | None, *layers: nn.Module) -> Tensor:
    """Compute `project`, given the result of `find_adapted` for these layers."""
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
    """Return layers with one input in the form `adapted_linear` takes.

    Return None for layers in float8, and for layers without adapters of `join_with_adapters`.
    """
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
    """Return the layers below their adapters, or None if one of the layers has to be called."""
    plain = [layer for layer in map(find_plain, layers) if layer is not None]
    return plain if len(plain) == len(layers) else None


def _list_sizes(layers: list[CastLinear]) -> list[int]:
    return [layer.out_features for layer in layers]


def join_with_adapters(model: nn.Module, adapter: str) -> None:
    """Compute layers together with the adapter that peft has added to them under this name."""
    for layer in model.modules():
        if type(getattr(layer, "base_layer", None)) is CastLinear:
            layer.joined_adapter = adapter


def use_fp8(model: nn.Module, *, exclude: frozenset[str] = frozenset({"lm_head"})) -> int:
    """Switch the model's linear layers to float8 and return how many were switched.

    Skips the layers named in `exclude` and those whose sizes float8 does not support.
    """
    chosen = [
        layer
        for name, layer in model.named_modules()
        if isinstance(layer, CastLinear)
        and name.rpartition(".")[2] not in exclude
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
    """Return the layer, or the layer below a joined adapter. Return None if the layer has to be called."""
    inner = layer.base_layer if hasattr(layer, "joined_adapter") else layer
    if type(inner) is not CastLinear or hasattr(inner.weight, "device_mesh"):  # sharded by a plan
        return None
    return inner


def find_adapter(layer: Any) -> Adapter | None:
    """Return the adapter that `join_with_adapters` has registered on a layer, if any."""
    name = getattr(layer, "joined_adapter", None)
    if name is None:
        return None
    return Adapter(
        layer.lora_A[name].weight, layer.lora_B[name].weight * float(layer.scaling[name])
    )


def write_adapter(layer: Any, place: Tensor, *, is_up: bool) -> None:
    """Write one side of the layer's adapter to `place` in one kernel. Do nothing without an adapter."""
    name = getattr(layer, "joined_adapter", None)
    if name is None:
        return
    if is_up:
        torch.mul(layer.lora_B[name].weight, float(layer.scaling[name]), out=place)
    else:
        place.copy_(layer.lora_A[name].weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenGroup:
    """Layers with one input, and the matrix that their weights are views of."""

    layers: list[Any]
    plain: list[CastLinear]
    joined: Tensor
    is_widening: bool  # adapters are columns beside the weights, otherwise rows below them
    places: list[Tensor]  # each layer's adapter within the matrix, empty for a layer without one

    def holds_weights(self) -> bool:
        """Return whether the weights are still views of the matrix, which moving or casting undoes."""
        here = self.joined.untyped_storage().data_ptr()
        return all(layer.weight.untyped_storage().data_ptr() == here for layer in self.plain)

    def take_adapters(self) -> None:
        """Copy the current adapters into the matrix."""
        for layer, place in zip(self.layers, self.places, strict=True):
            write_adapter(layer, place, is_up=self.is_widening)


def keep_frozen_joined(module: nn.Module) -> None:
    """Register a hook that keeps the module's frozen weights joined before each call.

    A submodule's `one_input` lists the layers to call together. Calling such a module directly, without the
    hook, uses the adapters of the previous call.
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
    module.frozen_groups = None  # release the matrices of replaced weights
    groups = [_lay_out(layers) for layers in _find_layers(module)]
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # the freed blocks are too small for the joined matrices
    return groups


def _find_layers(module: nn.Module) -> Iterator[list[Any]]:
    """Yield groups of layers with one input that can be joined, if any layer of the group has adapters."""
    for part in module.modules():
        for names in getattr(part, "one_input", ()):
            layers = [getattr(part, name) for name in names]
            is_plain = all(find_plain(layer) is not None for layer in layers)
            if is_plain and any(find_adapter(layer) is not None for layer in layers):
                yield layers


def _lay_out(layers: list[Any]) -> FrozenGroup:
    """Move weights into one matrix that has columns or rows for their adapters."""
    plain = [layer for layer in map(find_plain, layers) if layer is not None]
    starts, ranks, width = place_columns([find_adapter(layer) for layer in layers])
    num_in, num_out = plain[0].in_features, sum(layer.out_features for layer in plain)
    is_wide = is_widening(num_in=num_in, num_out=num_out)
    plain[0].joined = None
    shape = (num_out, num_in + width) if is_wide else (num_out + width, num_in)
    joined = plain[0].weight.new_zeros(shape)
    # Writes through `.data` do not bump the version that autograd checks. That is safe here: a backward pass
    # that still needs the matrix finds the same values in it.
    untracked = joined.data
    places, row = [], 0
    for layer, start, rank in zip(plain, starts, ranks, strict=True):
        part = joined[row : row + layer.out_features, :num_in]
        part.copy_(layer.weight)
        layer.weight.data = part
        beside = untracked[row : row + layer.out_features, num_in + start :][:, :rank]
        places.append(beside if is_wide else untracked[num_out + start :][:rank])
        row += layer.out_features
    plain[0].joined = joined
    return FrozenGroup(
        layers=layers, plain=plain, joined=joined, is_widening=is_wide, places=places
    )
