"""What Triton kernels need: Triton itself, where it is there, and the sizes of their tiles.

Triton comes with the CUDA builds of torch, not with those for CPUs. Modules with kernels define them with
`jit` and `tl` from here, so that they can be imported anywhere, and ask `can_launch` before they use one.
With TRITON_INTERPRET=1 kernels run on a CPU, slowly: for tests.

Matmuls want rows of whole 128 bytes, and the kernel of `gated_mlp` whole tiles: how many tokens are taken at
once is decided by that as well (`gpu_memory`).
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from torch import Tensor

MOST_RANK = 32  # of adapters
STEP, BLOCK = 16, 64  # tokens and columns of a tile
# Of rows that begin at multiples of 128 bytes, matmuls are up to 8 % faster; and the compiler may lay out
# others with gaps.
_MULTIPLE = 64
# of a part: fewer make many parts, each with sums of its own
_MOST_TOKENS, _FEWEST_TOKENS = 1024, 256


def round_up(num_columns: int) -> int:
    """So many columns, or a few more, for rows that begin where matmuls want them."""
    return num_columns + -num_columns % _MULTIPLE


def can_tile(num_tokens: int, *, hidden_size: int, mlp_size: int) -> bool:
    """Whether tokens of an MLP of these sizes are whole tiles, in parts that are not too many."""
    is_even = hidden_size == round_up(hidden_size) and mlp_size % BLOCK == 0
    return is_even and choose_part(num_tokens) > 0


def choose_part(num_tokens: int) -> int:
    """Tokens that are added up in one go, all parts alike; 0 where no such part is large enough."""
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
    """Whether kernels can be used on this tensor."""
    return triton is not None and (x.is_cuda or _IS_INTERPRETED)


def jit(kernel: Any) -> Any:
    """A kernel; without Triton what can be neither called nor launched."""
    return kernel if triton is None else triton.jit(kernel)


def count_blocks(size: int, block: int) -> int:
    """How many blocks it takes to cover a size."""
    return -(-size // block)
