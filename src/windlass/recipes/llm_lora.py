"""Layers with adapters (LoRA) in one matmul each way: what adapters add are a few more columns to sum over.

`x W' + (x A') s B'` is `[x, x A'] [W, s B]'`; backward, with g the gradient of that, the gradient of x is
`[g, g s B] [W; A]`. So large outputs are written once, and by the matmul itself. W is frozen and has no
gradient. Called one by one, layers and adapters read and write every output several times, which costs more
than their arithmetic. The MLP is one function: what its gate makes is written with room for the columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from windlass.recipes.llm_fp8 import fp8_matmul
from windlass.recipes.llm_swiglu import swiglu_and_project, swiglu_backward_and_project

_MULTIPLE = 64  # columns, of which a GPU's matmuls take so many at once


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
    out: Tensor = kind.apply(rows, weight.detach(), *_cast(adapter, x.dtype))
    return out.reshape(*x.shape[:-1], weight.shape[0])


def adapted_mlp(
    x: Tensor, gate_up: Tensor, gate_up_adapter: Adapter, down: Tensor, down_adapter: Adapter
) -> Tensor:
    """The gated MLP of two frozen weights, those of gate and up in one, with an adapter on each."""
    rows = x.reshape(-1, x.shape[-1])
    first, second = _cast(gate_up_adapter, x.dtype), _cast(down_adapter, x.dtype)
    out: Tensor = _AdaptedMLP.apply(rows, gate_up.detach(), *first, down.detach(), *second)
    return out.reshape(*x.shape[:-1], down.shape[0])


class _AdaptedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, down: Tensor, up: Tensor) -> Tensor:
        wide = _widen(x, down.t())
        ctx.save_for_backward(wide, weight, down, up)
        return wide @ torch.cat([weight, up], dim=1).t()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        wide, weight, down, up = ctx.saved_tensors
        gradient = _widen(outer[0], up)
        x_grad = gradient @ torch.cat([weight, down]) if ctx.needs_input_grad[0] else None
        return x_grad, None, *_adapter_gradients(wide, gradient, weight)


class _AdaptedMLP(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor) -> Tensor:
        weight, down, up, weight2, down2, up2 = weights
        wide = _widen(x, down.t())
        both = wide @ torch.cat([weight, up], dim=1).t()
        hidden = swiglu_and_project(both, down2)
        ctx.save_for_backward(wide, both, hidden, *weights)
        return hidden @ torch.cat([weight2, up2], dim=1).t()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        wide, both, hidden, weight, down, up, weight2, down2, up2 = ctx.saved_tensors
        gradient = _widen(outer[0], up2)
        both_grad = swiglu_backward_and_project(both, gradient @ torch.cat([weight2, down2]), up)
        x_grad = both_grad @ torch.cat([weight, down]) if ctx.needs_input_grad[0] else None
        first = _adapter_gradients(wide, both_grad, weight)
        return x_grad, None, *first, None, *_adapter_gradients(hidden, gradient, weight2)


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


def _cast(adapter: Adapter, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return adapter.down.to(dtype), adapter.up.to(dtype)


def _widen(x: Tensor, columns: Tensor) -> Tensor:
    """x, and beside it what the columns make of it."""
    return torch.cat([x, x @ columns], dim=1)


def _adapter_gradients(wide: Tensor, gradient: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Of down and up, from the wide input and the wide gradient of a layer with this weight."""
    num_out, num_in = weight.shape
    return gradient[:, num_out:].t() @ wide[:, :num_in], gradient[:, :num_out].t() @ wide[
        :, num_in:
    ]
