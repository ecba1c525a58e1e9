"""Layers with adapters (LoRA) in one matmul each way: adapters are a few more columns of its sides.

`x W' + (x A') B'` is `[x, x A'] [W, B]'`, a sum over more columns; or it is the first columns of `x [W; A]'`
plus what B makes of the others. Backward, with g for x, the same matrix serves the other way: `g [W, B]`,
and `[g, g B] [W; A]`. Layers that widen take the first way and others the second, so that what is copied or
added is always on the narrow side. W is frozen and has no gradient. Called one by one, layers and adapters
read and write every output several times, which costs more than their arithmetic.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from windlass.recipes.llm_fp8 import fp8_matmul
from windlass.recipes.llm_score import widen

_MULTIPLE = 16  # columns, which a GPU's matmuls want


class Adapter(NamedTuple):
    """What is added to a layer's weight: up @ down."""

    down: Tensor  # (rank, in)
    up: Tensor  # (out, rank), its scale in it


def join_adapters(adapters: list[Adapter | None], num_outs: list[int]) -> Adapter:
    """The adapters of several layers with one input, as one of the layer that they are together."""
    present = [adapter for adapter in adapters if adapter is not None]
    ranks = [0 if adapter is None else adapter.down.shape[0] for adapter in adapters]
    filling = -sum(ranks) % _MULTIPLE
    total = sum(ranks) + filling
    down = functional.pad(torch.cat([adapter.down for adapter in present]), (0, 0, 0, filling))
    rows, start = [], 0
    for adapter, rank, num_out in zip(adapters, ranks, num_outs, strict=True):
        up = down.new_zeros(num_out, 0) if adapter is None else adapter.up
        rows.append(functional.pad(up, (start, total - start - rank)))
        start += rank
    return Adapter(down, torch.cat(rows))


def adapted_linear(x: Tensor, weight: Tensor, adapter: Adapter, *, is_fp8: bool = False) -> Tensor:
    """`x @ (weight + adapter.up @ adapter.down).T`; the weight is taken as frozen."""
    rows = x.reshape(-1, x.shape[-1])
    kind = _Fp8AdaptedLinear if is_fp8 else _AdaptedLinear
    down, up = adapter.down.to(x.dtype), adapter.up.to(x.dtype)
    out: Tensor = kind.apply(rows, weight.detach(), down, up)
    return out.reshape(*x.shape[:-1], weight.shape[0])


class _AdaptedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, down: Tensor, up: Tensor) -> Tensor:
        if _is_widening(weight):
            out, x, inner = _sum_over_more(x, down.t(), _join(weight, down, up).t())
        else:
            out, inner = _add_beside(x, _join(weight, down, up).t(), up.t())
        ctx.save_for_backward(x, inner, weight, down, up)
        return out

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        x, inner, weight, down, up = ctx.saved_tensors
        x_grad, (gradient,) = None, outer
        if not ctx.needs_input_grad[0]:
            inner_grad = gradient @ up
        elif _is_widening(weight):
            x_grad, inner_grad = _add_beside(gradient, _join(weight, down, up), down)
        else:
            x_grad, gradient, inner_grad = _sum_over_more(gradient, up, _join(weight, down, up))
        return x_grad, None, inner_grad.t() @ x, gradient.t() @ inner


class _Fp8AdaptedLinear(torch.autograd.Function):
    """The same where the frozen weight is multiplied in float8: adapters stay as they are, beside it."""

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


def _is_widening(weight: Tensor) -> bool:
    return weight.shape[0] >= weight.shape[1]


def _join(weight: Tensor, down: Tensor, up: Tensor) -> Tensor:
    return torch.cat([weight, up], dim=1) if _is_widening(weight) else torch.cat([weight, down])


def _sum_over_more(x: Tensor, right: Tensor, joined: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`[x, x right] joined`; and x and `x right`, as they lie beside each other."""
    wide = torch.cat([x, x @ right], dim=1)
    x, inner = wide.split([x.shape[1], right.shape[1]], dim=1)
    return wide @ joined, x, inner


def _add_beside(x: Tensor, joined: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """The first columns of `x joined` plus the others times `right`; and the others."""
    out, inner = (x @ joined).split([right.shape[1], right.shape[0]], dim=1)
    return _add(out, inner @ right), inner


def _add(first: Tensor, second: Tensor) -> Tensor:
    """In a wider type: the compiler makes the sum part of what reads it then, else an `addmm` with copies."""
    dtype = widen(first)
    return (first.to(dtype) + second.to(dtype)).to(first.dtype)
