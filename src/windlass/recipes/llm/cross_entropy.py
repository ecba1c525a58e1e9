"""Fused language-model head and cross entropy that never materializes all logits.

Tokens are processed in chunks. The forward pass computes each chunk's gradient while its logits are in
memory, so the backward pass neither repeats the head's matmul nor stores it. Only the gradients of the hidden
states and of the head's weight are kept. The loss is a sum times `scale`. The caller divides by the valid
tokens of the whole step, over all ranks and micro-batches, because no single batch knows that number.

`score` replaces one chunk's logits by their gradient. On a GPU it is one Triton kernel that handles a row at
a time. The kernel reads a row twice, the second time from the cache, and overwrites it with the gradient.
That takes half the time of the code that torch.compile generates. Elsewhere `score` is plain PyTorch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from windlass.recipes.llm.kernel_launch import can_launch, jit, tl
from windlass.train.data.token_packing import IGNORED

_BLOCK = 4096
_WARPS = 8
CHUNK_BYTES = 4 << 30  # size of one chunk's logits
_HAS_OUT_DTYPE = "dtype_out" in torch.ops.aten.addmm.overloads()


def score(
    logits: Tensor, labels: Tensor, scale: Tensor, *, needs_gradient: bool
) -> tuple[Tensor, Tensor]:
    """Return the summed loss of logits (tokens, vocabulary), and `scale` times its gradient.

    The gradient has the dtype of the logits. Logits and labels must be contiguous. The logits may be
    overwritten. With `needs_gradient=False` the second value is undefined.
    """
    if not can_launch(logits) or logits.dtype == torch.float64:
        return _score(logits, labels, scale)
    losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    _score_kernel[(len(logits),)](
        *(logits, labels, losses, scale, logits.shape[1]),
        IGNORED=IGNORED,
        NEEDS_GRADIENT=needs_gradient,
        BLOCK=_BLOCK,
        num_warps=_WARPS,
    )
    return losses.sum(), logits


def widen(tensor: Tensor) -> torch.dtype:
    """Return float32, or float64 for a tensor in float64."""
    return torch.promote_types(tensor.dtype, torch.float32)


def _score(logits: Tensor, labels: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    dtype, logits = logits.dtype, logits.to(widen(logits))
    is_valid = labels != IGNORED
    targets = labels.where(is_valid, 0)[:, None]
    spread = logits.logsumexp(dim=-1, keepdim=True)
    losses = (spread - logits.gather(1, targets))[:, 0]
    is_target = torch.arange(logits.shape[1], device=logits.device) == targets
    gradient = ((logits - spread).exp() - is_target.to(logits.dtype)) * (is_valid * scale)[:, None]
    return losses.where(is_valid, 0.0).sum(), gradient.to(dtype)


@jit
def _score_kernel(  # type: ignore[no-untyped-def]
    logits,
    labels,
    losses,
    scale,
    width,
    IGNORED: tl.constexpr,
    NEEDS_GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    label = tl.load(labels + row)
    is_valid = label != IGNORED
    first = logits + row.to(tl.int64) * width
    is_known = (label >= 0) & (label < width)  # an invalid label makes the loss NaN
    target = tl.load(first + label, is_known, other=float("nan")).to(tl.float32)
    most = tl.full((BLOCK,), -1e30, tl.float32)  # one per lane, so no block waits for a reduction
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, width, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        values = tl.load(first + columns, columns < width, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(most, values)
        total = total * tl.exp(most - higher) + tl.exp(values - higher)
        most = higher
    highest = tl.max(most, axis=0)
    spread = highest + tl.log(tl.sum(total * tl.exp(most - highest), axis=0))
    tl.store(losses + row, tl.where(is_valid, spread - target, 0.0))
    if NEEDS_GRADIENT:
        factor = tl.where(is_valid, tl.load(scale).to(tl.float32), 0.0)
        for start in range(0, width, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            is_inside = columns < width
            values = tl.load(first + columns, is_inside, other=0.0).to(tl.float32)
            share = tl.exp(values - spread) - tl.where(columns == label, 1.0, 0.0)
            value = (share * factor).to(logits.dtype.element_ty)
            tl.store(first + columns, value, is_inside)


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    scale: float | Tensor = 1.0,
    chunk: int | None = None,
) -> Tensor:
    """Return `scale` times the summed cross entropy of `hidden @ weight.T` against labels, in float32.

    hidden: (..., width), in the dtype to compute in. weight: (vocabulary, width), in any dtype.
    labels: (...), already shifted, with IGNORED for tokens that do not count.
    scale: a number, or a tensor on the device of `hidden` (which avoids a wait for the GPU).
    chunk: tokens at a time (default: chosen by CHUNK_BYTES).
    """
    rows = hidden.reshape(-1, hidden.shape[-1])
    chunk = chunk or _choose_chunk(weight.shape[0] * hidden.element_size())
    if not isinstance(scale, Tensor):
        scale = torch.full((), scale, dtype=widen(hidden), device=hidden.device)
    with torch.autocast(hidden.device.type, enabled=False):
        loss: Tensor = _LinearCrossEntropy.apply(
            rows, weight, labels.reshape(-1).contiguous(), scale, chunk, torch.is_grad_enabled()
        )
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        scale: Tensor,
        chunk: int,
        is_training: bool,
    ) -> Tensor:
        needs_hidden = is_training and ctx.needs_input_grad[0]
        needs_weight = is_training and ctx.needs_input_grad[1]
        compute = weight.to(hidden.dtype)
        total = torch.zeros((), dtype=widen(hidden), device=hidden.device)
        hidden_grad = torch.empty_like(hidden) if needs_hidden else None
        weight_grad = torch.zeros_like(weight, dtype=widen(weight)) if needs_weight else None
        for start in range(0, hidden.shape[0], chunk):
            part = hidden[start : start + chunk]
            loss, gradient = score(
                functional.linear(part, compute),
                labels[start : start + chunk],
                scale,
                needs_gradient=needs_hidden or needs_weight,
            )
            total += loss
            if hidden_grad is not None:
                torch.mm(gradient, compute, out=hidden_grad[start : start + chunk])
            if weight_grad is not None:
                _add_product(weight_grad, gradient.T, part)
        ctx.gradients = hidden_grad, weight_grad
        ctx.weight_dtype = weight.dtype
        return total * scale

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("linear_cross_entropy keeps its gradient for one backward pass only")
        hidden_grad, weight_grad = ctx.gradients
        ctx.gradients = None  # scaled in place below
        if hidden_grad is not None:
            hidden_grad.mul_(outer[0])
        if weight_grad is not None:
            weight_grad = weight_grad.mul_(outer[0]).to(ctx.weight_dtype)
        return hidden_grad, weight_grad, None, None, None, None


def _choose_chunk(token_bytes: int) -> int:
    """Return a power of two of tokens, large enough that summing the weight's gradient costs little."""
    return max(256, 1 << (CHUNK_BYTES // token_bytes).bit_length() - 1)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left @ right to the total, which may have a wider dtype than both."""
    if total.is_cuda and total.dtype != left.dtype and _HAS_OUT_DTYPE:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total += left @ right
