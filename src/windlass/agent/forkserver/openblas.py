"""Thread count of OpenBLAS in a fork server, which must stay single-threaded.

OpenBLAS starts threads while numpy loads it. The fork server therefore loads it with one thread. Before a
fork it sets the number of threads that the rank would have had. OpenBLAS ends its threads before a fork and
restarts them when they are first needed, so ranks that do not need threads have none.
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
    """Number of OpenBLAS threads in the ranks that are forked next."""

    def __init__(self) -> None:
        self._setters = _find_setters()
        self._num_threads = 1

    def set_for(self, env: Mapping[str, str]) -> None:
        """Set the number of threads that OpenBLAS would choose in this environment."""
        wanted = _choose(env)
        if self._setters and wanted != self._num_threads:
            for set_threads in self._setters:
                set_threads(wanted)
            self._num_threads = wanted


def _choose(env: Mapping[str, str]) -> int:
    """Return the number of threads that OpenBLAS would choose in this environment.

    The first variable that starts with a positive number counts, up to the number of cores.
    """
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
