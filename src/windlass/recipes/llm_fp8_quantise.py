"""A matrix in float8 twice: with a scale for each row, and transposed with a scale for each column.

The first is a side of the matmul over its columns, the second of the one over its rows, since float8 matmuls
want both sides to lie along what is summed over. On a GPU two small Triton kernels read the matrix twice, to
measure and to write both; what torch.compile makes of the transposed one takes three times as long.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from windlass.recipes.llm_triton import can_launch, count_blocks, jit, tl

DTYPE = torch.float8_e4m3fn
LARGEST = 448.0  # of that dtype
SMALLEST = 1e-30  # what a row is taken to have at the least, so that one of zeros has a scale
_MEASURED_ROWS, _MEASURED_COLUMNS, _ROWS_AT_ONCE = 512, 256, 32
_TILE = 128


class Quantised(NamedTuple):
    """A matrix (rows, columns) in float8, and what its rows are to be multiplied by."""

    values: Tensor  # (rows, columns)
    scales: Tensor  # (rows,), float32


def quantise(x: Tensor) -> Quantised:
    """A matrix in float8 with a scale for each row; compiled, it becomes part of what made the matrix."""
    largest = x.abs().amax(dim=1, keepdim=True).float().clamp(min=SMALLEST)
    values = (x.float() * (LARGEST / largest)).clamp(-LARGEST, LARGEST)
    return Quantised(values.to(DTYPE), (largest / LARGEST)[:, 0])


def quantise_both(x: Tensor) -> tuple[Quantised, Quantised]:
    """A matrix in float8 with a scale for each row, and its transpose likewise."""
    if not can_launch(x):
        return quantise(x), quantise(x.t().contiguous())
    values, scales, transposed, column_scales = _quantise_both(x.contiguous())
    return Quantised(values, scales), Quantised(transposed, column_scales)


@torch.library.custom_op(
    "windlass::quantise_both",
    mutates_args=(),
    schema="(Tensor x) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _quantise_both(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
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


@_quantise_both.register_fake
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
    """The largest absolute value of each row and of each column; both begin as zeros."""
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    most = tl.zeros((STEP, BLOCK), tl.float32)  # reduced once, at the end
    for start in range(0, NUM_ROWS, STEP):
        rows = tl.program_id(0) * NUM_ROWS + start + tl.arange(0, STEP)
        is_inside = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
        places = rows.to(tl.int64)[:, None] * num_columns + columns[None, :]
        values = tl.abs(tl.load(x + places, is_inside, other=0.0).to(tl.float32))
        most = tl.maximum(most, values)
        # relaxed, without a fence at each step: nobody reads them before this kernel's end
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
    """Both matrices in float8, by the largest values of rows and columns."""
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
    turned = tl.trans((tile * (1.0 / column_scale)[None, :]).to(tl.float8e4nv))
    tl.store(transposed + places, turned, is_column[:, None] & is_row[None, :])
