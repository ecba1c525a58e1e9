"""Layers with adapters (LoRA) in one matmul each way: adapters are a few more columns of its sides.

`x W' + (x A') B'` is `[x, x A'] [W, B]'`, a sum over more columns; or it is the first columns of `x [W; A]'`
plus what B makes of the others. Backward, with g for x, the same matrix serves the other way: `g [W, B]`,
and `[g, g B] [W; A]`. Layers that widen take the first way and others the second, so that what is copied or
added is always on the narrow side. W is frozen and has no gradient. Called one by one, layers and adapters
read and write every output several times, which costs more than their arithmetic.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from windlass.recipes.llm_fp8 import fp8_matmul
from windlass.recipes.llm_mlp_tiles import round_up
from windlass.recipes.llm_score import widen


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
