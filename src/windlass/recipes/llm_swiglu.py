"""The gate of a Llama's MLP, silu(gate) * up, on both in one tensor.

On a GPU one small Triton kernel each way: what torch.compile makes of the backward pass writes its two halves
through a concatenation and computes them twice, which takes half as long again. Elsewhere, plain PyTorch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from windlass.recipes.llm_triton import can_launch, count_blocks, jit, tl

_BLOCK = 1024


def swiglu(both: Tensor) -> Tensor:
    """silu(gate) * up, for gate and up one after the other in the last dimension."""
    if not can_launch(both):
        gate, up = both.chunk(2, dim=-1)
        return functional.silu(gate) * up
    rows = both.reshape(-1, both.shape[-1]).contiguous()
    out: Tensor = _SwiGlu.apply(rows)
    return out.view(*both.shape[:-1], -1)


def write_gated(both: Tensor) -> Tensor:
    """The same by its kernel, for a matrix whose rows lie one after the other; autograd does not see it."""
    out = both.new_empty(both.shape[0], both.shape[1] // 2)
    _forward_kernel[_grid(out)](both, out, out.shape[1], BLOCK=_BLOCK)
    return out


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, both: Tensor) -> Tensor:
        ctx.save_for_backward(both)
        return write_gated(both)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Tensor:
        (both,) = ctx.saved_tensors
        gradient = outer[0].contiguous()
        both_grad = torch.empty_like(both)
        _backward_kernel[_grid(gradient)](
            both, gradient, both_grad, gradient.shape[1], BLOCK=_BLOCK
        )
        return both_grad


def _grid(out: Tensor) -> tuple[int, int]:
    return out.shape[0], count_blocks(out.shape[1], _BLOCK)


@jit
def _forward_kernel(both, out, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_inside = columns < width
    gate = tl.load(both + row * 2 * width + columns, is_inside).to(tl.float32)
    up = tl.load(both + row * 2 * width + width + columns, is_inside).to(tl.float32)
    value = gate * tl.sigmoid(gate) * up
    tl.store(out + row * width + columns, value.to(out.dtype.element_ty), is_inside)


@jit
def _backward_kernel(both, outer, grad, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_inside = columns < width
    here = row * 2 * width + columns
    gate = tl.load(both + here, is_inside).to(tl.float32)
    up = tl.load(both + here + width, is_inside).to(tl.float32)
    outer_value = tl.load(outer + row * width + columns, is_inside).to(tl.float32)
    share = tl.sigmoid(gate)
    gate_grad = outer_value * up * share * (1.0 + gate * (1.0 - share))
    up_grad = outer_value * gate * share
    tl.store(grad + here, gate_grad.to(grad.dtype.element_ty), is_inside)
    tl.store(grad + here + width, up_grad.to(grad.dtype.element_ty), is_inside)
