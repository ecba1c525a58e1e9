"""The cross entropy of some tokens' logits, and the gradient of the logits in their place.

On a GPU one Triton kernel, a row at a time: it reads a row twice, the second time from the cache, and writes
the gradient over it, in half the time of what torch.compile makes of the same. Elsewhere, plain PyTorch.
Called by `llm_loss` for one chunk of logits after another.
"""

from __future__ import annotations

import torch
from torch import Tensor

from windlass.recipes.llm_triton import can_launch, jit, tl
from windlass.train.data.token_packing import IGNORED

_BLOCK = 4096
_WARPS = 8


def score(
    logits: Tensor, labels: Tensor, scale: Tensor, *, needs_gradient: bool
) -> tuple[Tensor, Tensor]:
    """The summed loss of (tokens, vocabulary), and `scale` times its gradient, in the dtype of the logits.

    Logits and labels are contiguous. The logits may be written over; where no gradient is needed, what comes
    second is not one.
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
    """float32, or float64 for what is in float64 already."""
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
    is_known = (label >= 0) & (
        label < width
    )  # what is neither known nor ignored makes the loss NaN
    target = tl.load(first + label, is_known, other=float("nan")).to(tl.float32)
    most = tl.full((BLOCK,), -1e30, tl.float32)  # by lane, so that no block waits for a reduction
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
