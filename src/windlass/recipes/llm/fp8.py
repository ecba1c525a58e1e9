"""Matmuls in float8 with scales measured in each step: the forward matmul and both backward matmuls.

Values that are summed together share a scale: a row of the left side, or a column of the right side. One
outlier therefore affects one row. Inputs and outputs are bfloat16, and weights keep their dtype. The head is
not computed in float8. Values kept for the backward pass are already in float8.

A matrix is quantized twice: with a scale for each row, and transposed with a scale for each column. The first
feeds the matmul over its columns and the second the one over its rows. Float8 matmuls need both sides
contiguous along the summed dimension. On a GPU, two small Triton kernels read the matrix twice, to measure it
and to write both results. The kernel that torch.compile generates for the transposed matrix takes three times
as long.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from windlass.errors import SpecError
from windlass.recipes.llm.kernel_launch import can_launch, count_blocks, jit, tl

DTYPE = torch.float8_e4m3fn
LARGEST = 448.0  # largest finite value of DTYPE
SMALLEST = 1e-30  # lower bound of a row's largest value, so that a row of zeros has a scale
_MEASURED_ROWS, _MEASURED_COLUMNS, _ROWS_AT_ONCE = 512, 256, 32
_TILE = 128
_MULTIPLE = 16  # both sizes of a layer must be multiples of it
_CAPABILITY = (8, 9)


class Quantized(NamedTuple):
    """Matrix (rows, columns) in float8, and the factor of each row."""

    values: Tensor  # (rows, columns)
    scales: Tensor  # (rows,), float32


def quantize(x: Tensor) -> Quantized:
    """Quantize a matrix with a scale per row. When compiled, this fuses into the op that makes the matrix."""
    largest = x.abs().amax(dim=1, keepdim=True).float().clamp(min=SMALLEST)
    values = (x.float() * (LARGEST / largest)).clamp(-LARGEST, LARGEST)
    return Quantized(values.to(DTYPE), (largest / LARGEST)[:, 0])


def quantize_both(x: Tensor) -> tuple[Quantized, Quantized]:
    """Quantize a matrix with a scale per row, and its transpose likewise."""
    if not can_launch(x):
        return quantize(x), quantize(x.t().contiguous())
    values, scales, transposed, column_scales = _quantize_both(x.contiguous())
    return Quantized(values, scales), Quantized(transposed, column_scales)


@torch.library.custom_op(
    "windlass::quantize_both",
    mutates_args=(),
    schema="(Tensor x) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _quantize_both(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, columns = x.shape
    largest = x.new_zeros(rows + columns, dtype=torch.float32)
    by_row, by_column = largest[:rows], largest[rows:]
    grid = count_blocks(rows, _MEASURED_ROWS), count_blocks(columns, _MEASURED_COLUMNS)
    _measure_kernel[grid](
        *(x, by_row, by_column, rows, columns),
        NUM_ROWS=_MEASURED_ROWS,
        STEP=_ROWS_AT_ONCE,
        BLOCK=_MEASURED_COLUMNS,
    )
    values, transposed = torch.empty_like(x, dtype=DTYPE), x.new_empty(columns, rows, dtype=DTYPE)
    scales, column_scales = torch.empty_like(by_row), torch.empty_like(by_column)
    grid = count_blocks(rows, _TILE), count_blocks(columns, _TILE)
    _write_kernel[grid](
        *(x, values, transposed, by_row, by_column, scales, column_scales, rows, columns),
        LARGEST=LARGEST,
        SMALLEST=SMALLEST,
        BLOCK=_TILE,
    )
    return values, scales, transposed, column_scales


@_quantize_both.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, columns = x.shape
    return (
        torch.empty_like(x, dtype=DTYPE),
        x.new_empty(rows, dtype=torch.float32),
        x.new_empty(columns, rows, dtype=DTYPE),
        x.new_empty(columns, dtype=torch.float32),
    )


@jit
def _measure_kernel(  # type: ignore[no-untyped-def]
    x,
    by_row,
    by_column,
    num_rows,
    num_columns,
    NUM_ROWS: tl.constexpr,
    STEP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Measure the largest absolute value of each row and column. Both outputs must start as zeros."""
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    most = tl.zeros((STEP, BLOCK), tl.float32)  # reduced once, at the end
    for start in range(0, NUM_ROWS, STEP):
        rows = tl.program_id(0) * NUM_ROWS + start + tl.arange(0, STEP)
        is_inside = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
        places = rows.to(tl.int64)[:, None] * num_columns + columns[None, :]
        values = tl.abs(tl.load(x + places, is_inside, other=0.0).to(tl.float32))
        most = tl.maximum(most, values)
        # relaxed, without a fence in each step, because the results are read after the kernel ends
        tl.atomic_max(by_row + rows, tl.max(values, axis=1), rows < num_rows, sem="relaxed")
    is_column = columns < num_columns
    tl.atomic_max(by_column + columns, tl.max(most, axis=0), is_column, sem="relaxed")


@jit
def _write_kernel(  # type: ignore[no-untyped-def]
    x,
    values,
    transposed,
    by_row,
    by_column,
    scales,
    column_scales,
    num_rows,
    num_columns,
    LARGEST: tl.constexpr,
    SMALLEST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write both float8 matrices, scaled by the largest values of rows and columns."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_row, is_column = rows < num_rows, columns < num_columns
    row_scale = tl.maximum(tl.load(by_row + rows, is_row, other=1.0), SMALLEST) / LARGEST
    column_scale = (
        tl.maximum(tl.load(by_column + columns, is_column, other=1.0), SMALLEST) / LARGEST
    )
    if tl.program_id(1) == 0:
        tl.store(scales + rows, row_scale, is_row)
    if tl.program_id(0) == 0:
        tl.store(column_scales + columns, column_scale, is_column)
    places = rows.to(tl.int64)[:, None] * num_columns + columns[None, :]
    is_inside = is_row[:, None] & is_column[None, :]
    tile = tl.load(x + places, is_inside, other=0.0).to(tl.float32)
    tl.store(values + places, (tile * (1.0 / row_scale)[:, None]).to(tl.float8e4nv), is_inside)
    places = columns.to(tl.int64)[:, None] * num_rows + rows[None, :]
    transposed_weight = tl.trans((tile * (1.0 / column_scale)[None, :]).to(tl.float8e4nv))
    tl.store(transposed + places, transposed_weight, is_column[:, None] & is_row[None, :])


def check_fp8(device: torch.device) -> None:
    """Raise SpecError if a device has no float8 matmuls."""
    if device.type != "cuda":
        raise SpecError(
            f"--precision fp8 needs a GPU, but this rank has {device}", hint="use --precision bf16"
        )
    capability = torch.cuda.get_device_capability(device)
    if capability < _CAPABILITY:
        name = torch.cuda.get_device_name(device)
        raise SpecError(
            f"{name} has no float8 matmuls (capability {capability[0]}.{capability[1]}, needs 8.9)",
            hint="use --precision bf16",
        )


def can_fp8(num_in: int, num_out: int) -> bool:
    """Return whether a layer of this size can be computed in float8."""
    return num_in % _MULTIPLE == 0 and num_out % _MULTIPLE == 0


def fp8_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Return `x @ weight.T` in float8. The backward pass is in float8 too."""
    rows = x.reshape(-1, x.shape[-1])
    if not torch.is_grad_enabled():
        return fp8_matmul(rows, weight.t()).reshape(*x.shape[:-1], weight.shape[0])
    filling = -len(rows) % _MULTIPLE  # the weight's gradient sums over the rows
    filled = functional.pad(rows, (0, 0, 0, filling)) if filling else rows
    out: Tensor = _Fp8Linear.apply(filled, weight)
    return out[: len(rows)].reshape(*x.shape[:-1], weight.shape[0])


class _Fp8Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        by_token, by_input = quantize_both(x)
        by_output, transposed_weight = quantize_both(weight)
        ctx.save_for_backward(*by_input, *transposed_weight)
        return _multiply(by_token, by_output, x.dtype)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (gradient,) = outer
        by_input, transposed_weight = (
            Quantized(*ctx.saved_tensors[:2]),
            Quantized(*ctx.saved_tensors[2:]),
        )
        needs_x, needs_weight = ctx.needs_input_grad
        by_token, by_output = quantize_both(gradient)
        return (
            _multiply(by_token, transposed_weight, gradient.dtype) if needs_x else None,
            _multiply(by_output, by_input, gradient.dtype) if needs_weight else None,
        )


def fp8_matmul(left: Tensor, right: Tensor) -> Tensor:
    """Return `left @ right` in float8, without gradients."""
    return _multiply(quantize(left.contiguous()), quantize(right.t().contiguous()), left.dtype)


def _multiply(left: Quantized, right: Quantized, dtype: torch.dtype) -> Tensor:
    """Return `left @ right.T` of float8 matrices."""
    product: Tensor = torch._scaled_mm(  # noqa: SLF001 - torch 2.6 has no public function
        left.values,
        right.values.t(),
        scale_a=left.scales[:, None],
        scale_b=right.scales[None, :],
        out_dtype=dtype,
        use_fast_accum=False,  # fast accumulation takes 10 % less time, but keeps only about 14 bits
    )
    return product
