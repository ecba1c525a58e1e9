"""The gate of a Llama's MLP, silu(gate) * up, on both in one tensor.

On a GPU one small Triton kernel each way: what torch.compile makes of the backward pass writes its two halves
through a concatenation and computes them twice, which takes half as long again. Elsewhere, plain PyTorch.
For layers with adapters (`llm_lora`) the result is written with room for the columns that adapters add.
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
        return _plain(both)
    rows = both.reshape(-1, both.shape[-1])
    out: Tensor = _SwiGlu.apply(rows)
    return out.view(*both.shape[:-1], -1)


def swiglu_and_project(both: Tensor, down: Tensor) -> Tensor:
    """`[h, h @ down.T]` for h = swiglu(both), without gradients."""
    if not can_launch(both):
        out = _plain(both)
        return torch.cat([out, out @ down.t()], dim=1)
    wide: Tensor = _swiglu_and_project(both, down)
    return wide


def swiglu_backward(both: Tensor, outer: Tensor) -> Tensor:
    """The gradient of `both` where `outer` is that of swiglu(both)."""
    if not can_launch(both):
        return _plain_backward(both, outer)
    gradient: Tensor = _swiglu_backward(both, outer.contiguous())
    return gradient


def _plain(both: Tensor) -> Tensor:
    gate, up = both.chunk(2, dim=-1)
    return functional.silu(gate) * up


def _plain_backward(both: Tensor, outer: Tensor) -> Tensor:
    gate, up = both.chunk(2, dim=-1)
    share = gate.sigmoid()
    gate_grad = outer * up * share * (1 + gate * (1 - share))
    return torch.cat([gate_grad, outer * gate * share], dim=-1)


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, both: Tensor) -> Tensor:
        ctx.save_for_backward(both)
        out = both.new_empty(both.shape[0], both.shape[1] // 2)
        return _write_forward(both, out)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Tensor:
        (both,) = ctx.saved_tensors
        return swiglu_backward(both, outer[0])


def _write_forward(both: Tensor, out: Tensor) -> Tensor:
    """Into the first columns of `out`."""
    width = both.shape[1] // 2
    grid = both.shape[0], count_blocks(width, _BLOCK)
    _forward_kernel[grid](both, out, width, out.stride(0), BLOCK=_BLOCK)
    return out


@torch.library.custom_op(
    "windlass::swiglu_and_project", mutates_args=(), schema="(Tensor both, Tensor down) -> Tensor"
)
def _swiglu_and_project(both: Tensor, down: Tensor) -> Tensor:
    width = both.shape[1] // 2
    wide = _write_forward(both, both.new_empty(both.shape[0], width + down.shape[0]))
    wide[:, width:] = wide[:, :width] @ down.t()
    return wide


@_swiglu_and_project.register_fake
def _(both: Tensor, down: Tensor) -> Tensor:
    return both.new_empty(both.shape[0], both.shape[1] // 2 + down.shape[0])


@torch.library.custom_op(
    "windlass::swiglu_backward", mutates_args=(), schema="(Tensor both, Tensor outer) -> Tensor"
)
def _swiglu_backward(both: Tensor, outer: Tensor) -> Tensor:
    grad = torch.empty_like(both)
    width = outer.shape[1]
    _backward_kernel[outer.shape[0], count_blocks(width, _BLOCK)](
        both, outer, grad, width, BLOCK=_BLOCK
    )
    return grad


@_swiglu_backward.register_fake
def _(both: Tensor, outer: Tensor) -> Tensor:
    del outer
    return torch.empty_like(both)


@jit
def _forward_kernel(  # type: ignore[no-untyped-def]
    both,
    out,
    width,
    stride,
    BLOCK: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_inside = columns < width
    gate = tl.load(both + row * 2 * width + columns, is_inside).to(tl.float32)
    up = tl.load(both + row * 2 * width + width + columns, is_inside).to(tl.float32)
    value = gate * tl.sigmoid(gate) * up
    tl.store(out + row * stride + columns, value.to(out.dtype.element_ty), is_inside)


@jit
def _backward_kernel(  # type: ignore[no-untyped-def]
    both,
    outer,
    grad,
    width,
    BLOCK: tl.constexpr,  # noqa: N803
):
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
