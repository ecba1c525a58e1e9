"""Triton, where it is there: it comes with the CUDA builds of torch, not with those for CPUs.

Modules with kernels define them with `jit` and `tl` from here, so that they can be imported anywhere, and ask
`can_launch` before they use one. With TRITON_INTERPRET=1 kernels run on a CPU, slowly: for tests.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from torch import Tensor


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
