"""Matmuls in float8 with scales measured at each step: forward, and both matmuls of the backward pass.

Everything that is summed over together has a scale of its own (a row of the left side, a column of the right
one), so one outlier spoils one row. What comes in and goes out is bfloat16, weights stay what they are; the
head is not done this way. What is kept for the backward pass is in float8 already.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from windlass.errors import SpecError
from windlass.recipes.llm_fp8_quantise import Quantised, quantise, quantise_both

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
    if not torch.is_grad_enabled():
        return fp8_matmul(rows, weight.t()).reshape(*x.shape[:-1], weight.shape[0])
    filling = -len(rows) % _MULTIPLE  # the weight's gradient is a sum over them
    filled = functional.pad(rows, (0, 0, 0, filling)) if filling else rows
    out: Tensor = _Fp8Linear.apply(filled, weight)
    return out[: len(rows)].reshape(*x.shape[:-1], weight.shape[0])


class _Fp8Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        by_token, by_input = quantise_both(x)
        by_output, turned = quantise_both(weight)
        ctx.save_for_backward(*by_input, *turned)
        return _multiply(by_token, by_output, x.dtype)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (gradient,) = outer
        by_input, turned = Quantised(*ctx.saved_tensors[:2]), Quantised(*ctx.saved_tensors[2:])
        needs_x, needs_weight = ctx.needs_input_grad
        by_token, by_output = quantise_both(gradient)
        return (
            _multiply(by_token, turned, gradient.dtype) if needs_x else None,
            _multiply(by_output, by_input, gradient.dtype) if needs_weight else None,
        )


def fp8_matmul(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right` in float8, without gradients."""
    return _multiply(quantise(left.contiguous()), quantise(right.t().contiguous()), left.dtype)


def _multiply(left: Quantised, right: Quantised, dtype: torch.dtype) -> Tensor:
    """`left @ right.T` of what is in float8."""
    product: Tensor = torch._scaled_mm(  # noqa: SLF001 - the only way there is in torch 2.6
        left.values,
        right.values.t(),
        scale_a=left.scales[:, None],
        scale_b=right.scales[None, :],
        out_dtype=dtype,
        use_fast_accum=False,  # fast sums keep some 14 bits, and save a tenth of the time
    )
    return product
