"""Layers with adapters (LoRA) in one matmul each way: adapters are a few more columns of its sides.

`x W' + (x A') s B'` is `[x, x A'] [W, s B]'`; backward, with g the gradient of that, `g [W, s B]` is what W
gives x and the gradient of `x A'`. So large outputs are written once, by the matmul itself. W is frozen and
has no gradient. Called one by one, layers and adapters read and write every output several times, which costs
more than their arithmetic. The MLP is one function: what its gate makes is written with room for the columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from windlass.recipes.llm_fp8 import fp8_matmul
from windlass.recipes.llm_score import widen
from windlass.recipes.llm_swiglu import swiglu_and_project, swiglu_backward

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
        wide = _widen(x, down)
        ctx.save_for_backward(wide, weight, down, up)
        return wide @ torch.cat([weight, up], dim=1).t()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        wide, *weights = ctx.saved_tensors
        x_grad, *gradients = _linear_backward(outer[0], wide, *weights)
        return x_grad if ctx.needs_input_grad[0] else None, None, *gradients


class _AdaptedMLP(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor) -> Tensor:
        weight, down, up, weight2, down2, up2 = weights
        wide = _widen(x, down)
        both = wide @ torch.cat([weight, up], dim=1).t()
        hidden = swiglu_and_project(both, down2)
        ctx.save_for_backward(wide, both, hidden, *weights)
        return hidden @ torch.cat([weight2, up2], dim=1).t()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        wide, both, hidden, weight, down, up, weight2, down2, up2 = ctx.saved_tensors
        (num_out, num_hidden), (gradient,) = weight2.shape, outer
        # the columns are summed over here, since the gate's kernel takes one tensor, and a large one
        wide_grad = _widen(gradient, up2.t())
        both_grad = swiglu_backward(both, wide_grad @ torch.cat([weight2, down2]))
        x_grad, *first = _linear_backward(both_grad, wide, weight, down, up)
        second = (
            wide_grad[:, num_out:].t() @ hidden[:, :num_hidden],
            gradient.t() @ hidden[:, num_hidden:],
        )
        return x_grad if ctx.needs_input_grad[0] else None, None, *first, None, *second


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


def _widen(x: Tensor, down: Tensor) -> Tensor:
    """x, and beside it what `down` makes of it."""
    return torch.cat([x, x @ down.t()], dim=1)


def _linear_backward(
    gradient: Tensor, wide: Tensor, weight: Tensor, down: Tensor, up: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, down and up of a layer whose input, widened, was `wide`."""
    width = weight.shape[1]
    x_grad, inner_grad = (gradient @ torch.cat([weight, up], dim=1)).split(
        [width, up.shape[1]], dim=1
    )
    # in a wider type, so that the compiler makes the sum part of what reads it; else it copies for `addmm`
    dtype = widen(gradient)
    x_grad = (x_grad.to(dtype) + (inner_grad @ down).to(dtype)).to(gradient.dtype)
    return x_grad, inner_grad.t() @ wide[:, :width], gradient.t() @ wide[:, width:]
