"""What a forked interpreter needs before user code runs in it, so that it is like a fresh one."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading


def settle_python() -> None:
    """Streams, faults, threads and seeds as a fresh interpreter has them."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()
    with contextlib.suppress(AttributeError):  # it is the server's until it is told
        threading.main_thread()._set_native_id()  # type: ignore[attr-defined]  # noqa: SLF001
    _draw_seeds()


def _draw_seeds() -> None:
    """Seed anew what a fresh interpreter seeds for itself; Python's own `random` does it at each fork."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)
