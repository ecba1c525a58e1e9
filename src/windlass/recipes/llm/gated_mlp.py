"""The gated MLP of a Llama: its gate, silu(gate) * up, and gate and adapted layers fused into one function.

On a GPU the gate is one small Triton kernel per direction. The backward pass that torch.compile generates
writes the two halves through a concatenation and computes them twice, which takes 1.5 times as long.
Elsewhere the gate is plain PyTorch.

With adapters, the backward pass reads large tensors once. The gate's backward pass writes the largest
gradients of a model. The same Triton kernel also sums the gradients of the adapters before and after the
gate. Separate layers and gate would read all of it again. The gate's output is not kept, because the kernel
recomputes it. If the kernel cannot be used (`can_join`), layers and gate are called one by one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from windlass.recipes.llm.kernel_launch import (
    BLOCK,
    MOST_RANK,
    STEP,
    can_launch,
    can_tile,
    choose_part,
    count_blocks,
    jit,
    tl,
)
from windlass.recipes.llm.linear_layers import (
    Adapted,
    Adapter,
    AdapterColumns,
    multiply,
    multiply_back,
)

_BLOCK = 1024
_STAGES = 3


def swiglu(both: Tensor) -> Tensor:
    """Return silu(gate) * up, where gate and up are concatenated in the last dimension."""
    if not can_launch(both):
        gate, up = both.chunk(2, dim=-1)
        return functional.silu(gate) * up
    rows = both.reshape(-1, both.shape[-1]).contiguous()
    out: Tensor = _SwiGlu.apply(rows)
    return out.view(*both.shape[:-1], -1)


def write_gated(both: Tensor) -> Tensor:
    """Compute `swiglu` of a contiguous matrix with its kernel, outside of autograd."""
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


def can_join(x: Tensor, first: Adapted, second: Adapted) -> bool:
    """Return whether `adapted_mlp` applies: kernels are available and all sizes are multiples of tiles."""
    hidden_size, mlp_size = x.shape[-1], second.adapter.down.shape[1]
    is_even = can_tile(x.numel() // hidden_size, hidden_size=hidden_size, mlp_size=mlp_size)
    rank = max(*first.columns.ranks, *second.columns.ranks)
    return can_launch(x) and is_even and rank <= MOST_RANK and x.dtype != torch.float64


def adapted_mlp(x: Tensor, first: Adapted, second: Adapted) -> Tensor:
    """Return `second(silu(gate) * up)`, where `gate, up = first(x)`."""
    rank = max(*first.columns.ranks, *second.columns.ranks)
    sides = [side.to(x.dtype) for side in (*first.adapter, *second.adapter)]
    out: Tensor = _AdaptedMLP.apply(
        x.reshape(-1, x.shape[-1]),
        *(first.joined.detach(), second.joined.detach(), *sides),
        *(first.columns, 16 if rank <= 16 else MOST_RANK),
    )
    return out.view(*x.shape[:-1], -1)


class _AdaptedMLP(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        first: Tensor,
        second: Tensor,
        first_down: Tensor,
        first_up: Tensor,
        second_down: Tensor,
        second_up: Tensor,
        columns: AdapterColumns,
        rank: int,
    ) -> Tensor:
        before, after = Adapter(first_down, first_up), Adapter(second_down, second_up)
        both, x, first_inner = multiply(x, first, before)
        out, _, second_inner = multiply(write_gated(both), second, after)
        ctx.save_for_backward(*(x, both, first_inner, second_inner, first, second, *before, *after))
        ctx.columns, ctx.rank = columns, rank
        return out

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        x, both, first_inner, second_inner, first, second, *sides = ctx.saved_tensors
        before, after = Adapter(*sides[:2]), Adapter(*sides[2:])
        gated_grad, outer_grad, second_inner_grad = multiply_back(outer[0], second, after)
        both_grad, sums = _gate_backward(
            *(both, gated_grad, first_inner, second_inner_grad),
            up_start=ctx.columns.starts[1],
            rank=ctx.rank,
        )
        first_up_grad, second_down_grad = _place(sums, ctx.columns, second_inner.shape[1])
        x_grad, _, first_inner_grad = multiply_back(both_grad, first, before)
        return (
            *(x_grad, None, None, first_inner_grad.t() @ x, first_up_grad),
            *(second_down_grad, outer_grad.t() @ second_inner, None, None),
        )


def _place(sums: Tensor, columns: AdapterColumns, num_after: int) -> tuple[Tensor, Tensor]:
    """Arrange the sums for gate, up and down as gradients of the adapters before and after the gate."""
    gate, up, down = sums
    parts = [
        functional.pad(part[:rank].t(), (start, columns.width - start - rank))
        for part, start, rank in zip((gate, up), columns.starts, columns.ranks, strict=True)
    ]
    return torch.cat(parts), functional.pad(down, (0, 0, 0, num_after - down.shape[0]))


def _gate_backward(
    both: Tensor,
    gated_grad: Tensor,
    inner: Tensor,
    inner_grad: Tensor,
    *,
    up_start: int,
    rank: int,
) -> tuple[Tensor, Tensor]:
    """Return the gradient of gate and up, and three sums over the tokens, each (rank, width).

    The sums are gate's gradient with the first columns of `inner`, up's gradient with the columns from
    `up_start`, and the gate's output with `inner_grad`.
    """
    num_tokens, width = gated_grad.shape
    num_rows = choose_part(num_tokens)
    num_parts = num_tokens // num_rows
    both_grad = torch.empty_like(both)
    sums = both.new_empty(num_parts, 3, rank, width, dtype=torch.float32)
    _gate_backward_kernel[(width // BLOCK, num_parts)](
        *(both, gated_grad.contiguous(), inner, inner_grad, both_grad, sums),
        WIDTH=width,
        UP_START=up_start,
        INNER_STRIDE=inner.stride(0),
        INNER_GRAD_STRIDE=inner_grad.stride(0),
        NUM_ROWS=num_rows,
        STEP=STEP,
        BLOCK=BLOCK,
        RANK=rank,
        RANKS=4 * rank,  # three ranks, rounded up to a power of two
        STAGES=_STAGES,
    )
    return both_grad, sums.sum(dim=0).to(both.dtype)


@jit
def _gate_backward_kernel(  # type: ignore[no-untyped-def]
    both,
    outer,
    inner,
    inner_grad,
    grad,
    sums,
    WIDTH: tl.constexpr,
    UP_START: tl.constexpr,
    INNER_STRIDE: tl.constexpr,
    INNER_GRAD_STRIDE: tl.constexpr,
    NUM_ROWS: tl.constexpr,
    STEP: tl.constexpr,
    BLOCK: tl.constexpr,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    STAGES: tl.constexpr,
):
    # Whole tiles need no masks, and offsets within them fit in 32 bits. Masks and 64-bit offsets take
    # registers, so fewer programs would run concurrently to hide memory latency.
    column, part = tl.program_id(0) * BLOCK, tl.program_id(1).to(tl.int64)
    rows, columns, ranks = tl.arange(0, STEP), tl.arange(0, BLOCK), tl.arange(0, RANKS)
    row = part * NUM_ROWS
    both += row * (2 * WIDTH) + column
    grad += row * (2 * WIDTH) + column
    outer += row * WIDTH + column
    inner += row * INNER_STRIDE
    inner_grad += row * INNER_GRAD_STRIDE
    here = rows[:, None] * (2 * WIDTH) + columns[None, :]
    outer_here = rows[:, None] * WIDTH + columns[None, :]
    inner_here = ranks[:, None] + rows[None, :] * INNER_STRIDE
    inner_grad_here = ranks[:, None] + rows[None, :] * INNER_GRAD_STRIDE
    # One accumulator holds all three sums in separate rows. The operand that changes with each tile is on
    # the right, which tensor cores read in its stored layout. Three accumulators would use up the registers.
    is_gate = (ranks < RANK)[:, None]
    is_up = ((ranks >= RANK) & (ranks < 2 * RANK))[:, None]
    is_gated = ((ranks >= 2 * RANK) & (ranks < 3 * RANK))[:, None]
    total = tl.zeros((RANKS, BLOCK), tl.float32)
    for _ in tl.range(0, NUM_ROWS // STEP, num_stages=STAGES):
        gate = tl.load(both + here).to(tl.float32)
        up = tl.load(both + WIDTH + here).to(tl.float32)
        outer_value = tl.load(outer + outer_here).to(tl.float32)
        with_gate = tl.load(inner + inner_here, is_gate, other=0.0)
        with_up = tl.load(inner + (UP_START - RANK) + inner_here, is_up, other=0.0)
        with_gated = tl.load(inner_grad - 2 * RANK + inner_grad_here, is_gated, other=0.0)
        share = tl.sigmoid(gate)
        silu = gate * share
        gate_grad = outer_value * up * share * (1.0 + gate * (1.0 - share))
        gate_grad = gate_grad.to(grad.dtype.element_ty)
        up_grad = (outer_value * silu).to(grad.dtype.element_ty)
        gated = (silu * up).to(grad.dtype.element_ty)
        tl.store(grad + here, gate_grad)
        tl.store(grad + WIDTH + here, up_grad)
        total = tl.dot(with_gate, gate_grad, total, input_precision="ieee")
        total = tl.dot(with_up, up_grad, total, input_precision="ieee")
        total = tl.dot(with_gated, gated, total, input_precision="ieee")
        both += STEP * 2 * WIDTH
        grad += STEP * 2 * WIDTH
        outer += STEP * WIDTH
        inner += STEP * INNER_STRIDE
        inner_grad += STEP * INNER_GRAD_STRIDE
    sums += part * (3 * RANK * WIDTH) + column
    tl.store(sums + ranks[:, None] * WIDTH + columns[None, :], total, (ranks < 3 * RANK)[:, None])
