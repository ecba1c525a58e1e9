"""Matmuls in float8 with scales measured at each use: forward, and both matmuls of the backward pass.

Every row of the left side and every column of the right side has a scale of its own, so one outlier spoils
one row. What comes in and goes out is bfloat16, weights stay what they are; the head is not done this way.
Fast when compiled, where measuring, scaling and transposing become one kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from windlass.errors import SpecError

_DTYPE = torch.float8_e4m3fn
_LARGEST = 448.0  # of that dtype
_MULTIPLE = 16  # what a side must be a multiple of
_CAPABILITY = (8, 9)


def check_fp8(device: torch.device) -> None:
    """Refuse a device that has no float8 matmuls."""
    if device.type != "cuda":
        raise SpecError(
            f"--precision fp8 needs a GPU, and this rank has {device}", hint="--precision bf16"
        )
    capability = torch.cuda.get_device_capability(device)
    if capability < _CAPABILITY:
        name = torch.cuda.get_device_name(device)
        raise SpecError(
            f"{name} has no float8 matmuls (capability {capability[0]}.{capability[1]}, needs 8.9)",
            hint="--precision bf16",
        )


def can_fp8(num_in: int, num_out: int) -> bool:
    """Whether a layer of this size can be computed in float8."""
    return num_in % _MULTIPLE == 0 and num_out % _MULTIPLE == 0


def fp8_linear(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight.T` in float8; gradients too."""
    rows = x.reshape(-1, x.shape[-1])
    out: Tensor = _Fp8Linear.apply(rows, weight)
    return out.reshape(*x.shape[:-1], weight.shape[0])


class _Fp8Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return fp8_matmul(x, weight.t())

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (gradient,) = outer
        x, weight = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        return (
            fp8_matmul(gradient, weight) if needs_x else None,
            gradient.t() @ x if needs_weight else None,
        )


def fp8_matmul(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right` in float8, without gradients."""
    left8, left_scale = _quantise(left, dim=1)
    right8, right_scale = _quantise(right, dim=0)
    product: Tensor = torch._scaled_mm(  # noqa: SLF001 - the only way there is in torch 2.6
        left8.contiguous(),
        right8.t().contiguous().t(),  # the right side lies column by column
        scale_a=left_scale,
        scale_b=right_scale,
        out_dtype=left.dtype,
        use_fast_accum=True,
    )
    return product


def _quantise(x: Tensor, *, dim: int) -> tuple[Tensor, Tensor]:
    """x in float8, and the scale by which it is to be multiplied, one for all along `dim`."""
    largest = x.abs().amax(dim=dim, keepdim=True).float().clamp(min=1e-12)
    scale = largest / _LARGEST
    return (x.float() / scale).clamp(-_LARGEST, _LARGEST).to(_DTYPE), scale
