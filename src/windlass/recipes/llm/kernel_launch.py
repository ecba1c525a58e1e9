"""Support for Triton kernels: optional access to Triton, and the sizes of the kernels' tiles.

Torch's CUDA builds include Triton, but its CPU builds do not. Modules define kernels with `jit` and `tl` from
here, so that they can be imported anywhere, and call `can_launch` before they use one. With
TRITON_INTERPRET=1 kernels run on a CPU, slowly, for tests.

Matmuls are fastest with rows of whole 128 bytes, and the kernel of `gated_mlp` needs whole tiles. Both affect
how many tokens are taken at a time (`gpu_memory`).
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from torch import Tensor

MOST_RANK = 32  # highest rank of adapters
STEP, BLOCK = 16, 64  # tokens and columns of a tile
# Matmuls are up to 8 % faster with rows that start at multiples of 128 bytes. The compiler may lay out other
# rows with gaps.
_MULTIPLE = 64
# Tokens per part. Smaller parts would mean more parts, and each part has separate sums.
_MOST_TOKENS, _FEWEST_TOKENS = 1024, 256


def round_up(num_columns: int) -> int:
    """Round up to a number of columns whose rows are aligned for matmuls."""
    return num_columns + -num_columns % _MULTIPLE


def can_tile(num_tokens: int, *, hidden_size: int, mlp_size: int) -> bool:
    """Return whether the tokens of an MLP of these sizes split into whole tiles and large enough parts."""
    is_even = hidden_size == round_up(hidden_size) and mlp_size % BLOCK == 0
    return is_even and choose_part(num_tokens) > 0


def choose_part(num_tokens: int) -> int:
    """Return the tokens per part for equal parts, or 0 if no part size is large enough."""
    if num_tokens <= _MOST_TOKENS:
        return 0 if num_tokens % STEP else num_tokens
    for size in range(_MOST_TOKENS, _FEWEST_TOKENS - 1, -STEP):
        if num_tokens % size == 0:
            return size
    return 0


def _find(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


triton, tl = _find("triton"), _find("triton.language")
_IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def can_launch(x: Tensor) -> bool:
    """Return whether kernels can run on this tensor."""
    return triton is not None and (x.is_cuda or _IS_INTERPRETED)


def jit(kernel: Any) -> Any:
    """Compile a kernel with Triton. Without Triton, return the plain function, which must not be called."""
    return kernel if triton is None else triton.jit(kernel)


def count_blocks(size: int, block: int) -> int:
    """Return how many blocks cover a size."""
    return -(-size // block)
