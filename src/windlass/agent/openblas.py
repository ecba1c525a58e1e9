"""OpenBLAS, which numpy loads, starts its threads while it loads; a fork server may have only one.

So it is loaded with one thread, and each rank gives it back the number it would have had.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from windlass import names

_SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)


def restore_threads() -> None:
    """In a rank: as many threads as OpenBLAS would have chosen by itself."""
    if names.OPENBLAS_NUM_THREADS in os.environ:
        return
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    wanted = os.environ.get(names.OMP_NUM_THREADS, "")
    num_threads = int(wanted) if wanted.isdigit() else num_cores
    if num_threads == 1:
        return
    for path in _loaded_libraries():
        library = ctypes.CDLL(path)
        for name in _SETTERS:
            if hasattr(library, name):
                getattr(library, name)(num_threads)
                break


def _loaded_libraries() -> set[str]:
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return set()
    return {line.split()[-1] for line in maps.splitlines() if "openblas" in line}
