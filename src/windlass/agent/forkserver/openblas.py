"""OpenBLAS, which numpy loads, starts its threads while it loads; a fork server may have only one.

So it is loaded with one thread, and told before a fork how many the rank would have had. It ends its own
threads before a fork and starts them anew when they are first needed: ranks that need none have none.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from windlass import names

_SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)


class Threads:
    """How many threads OpenBLAS has in the ranks that are forked next."""

    def __init__(self) -> None:
        self._setters = _find_setters()
        self._num_threads = 1

    def promise(self, env: Mapping[str, str]) -> None:
        """Set as many threads as OpenBLAS would choose by itself in this environment."""
        wanted = _choose(env)
        if self._setters and wanted != self._num_threads:
            for set_threads in self._setters:
                set_threads(wanted)
            self._num_threads = wanted


def _choose(env: Mapping[str, str]) -> int:
    """As OpenBLAS reads its variables: the first that begins with a number, at most the number of cores."""
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    for name in (names.OPENBLAS_NUM_THREADS, "GOTO_NUM_THREADS", names.OMP_NUM_THREADS):
        number = re.match(r"\s*\+?(\d+)", env.get(name, ""))
        if number and int(number[1]) > 0:
            return min(int(number[1]), num_cores)
    return num_cores


def _find_setters() -> list[Any]:
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    paths = {line.split()[-1] for line in maps.splitlines() if "openblas" in line}
    libraries = [ctypes.CDLL(path) for path in paths]
    setters_of_each = [
        [getattr(library, n) for n in _SETTERS if hasattr(library, n)] for library in libraries
    ]
    return [setters[0] for setters in setters_of_each if setters]
