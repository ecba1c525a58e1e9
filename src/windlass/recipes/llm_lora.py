"""Layers with adapters (LoRA) in one matmul: what adapters add is a few more columns of the layers' input.

`x W' + (x A') s B'` is `[x, x A'] [W, s B]'`, so the large output is written once; and backward, the matmul
that gives the gradient of x gives that of `x A'` as well. W is frozen and has no gradient. Called one by one,
layers and adapters read and write every output several times, which costs more than their arithmetic.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from windlass.recipes.llm_fp8 import fp8_matmul

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
        wide = torch.cat([x, x @ down.t()], dim=1)
        ctx.save_for_backward(wide, weight, down, up)
        return wide @ torch.cat([weight, up], dim=1).t()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = outer
        wide, weight, down, up = ctx.saved_tensors
        width = weight.shape[1]
        if not ctx.needs_input_grad[0]:
            inner = gradient @ up
            return None, None, inner.t() @ wide[:, :width], gradient.t() @ wide[:, width:]
        wide_grad = gradient @ torch.cat([weight, up], dim=1)
        x_grad, inner = wide_grad[:, :width], wide_grad[:, width:]
        return (
            torch.addmm(x_grad, inner, down),
            None,
            inner.t() @ wide[:, :width],
            gradient.t() @ wide[:, width:],
        )


class _Fp8AdaptedLinear(torch.autograd.Function):
    """The same where the frozen weight is multiplied in float8: adapters stay as they are, beside it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, down: Tensor, up: Tensor) -> Tensor:
        inner = x @ down.t()
        ctx.save_for_backward(x, inner, weight, down, up)
        return torch.addmm(fp8_matmul(x, weight.t()), inner, up.t())

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = outer
        x, inner, weight, down, up = ctx.saved_tensors
        inner_grad = gradient @ up
        x_grad = None
        if ctx.needs_input_grad[0]:
            x_grad = torch.addmm(fp8_matmul(gradient, weight), inner_grad, down)
        return x_grad, None, inner_grad.t() @ x, gradient.t() @ inner
