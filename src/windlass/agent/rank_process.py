"""A rank's process: made like a fresh interpreter after the fork, and ended as an interpreter ends.

Threads are joined, exit handlers run, `__main__` is cleared, objects are finalised, stdio and C streams are
flushed, C exit handlers run: the interpreter does it, since a rank leaves its fork server by unwinding to the
top. Only what was loaded before the fork stays as it is: torch's modules and the static objects of its
libraries, which take a quarter of a second in every rank. The fork server imports this before torch.
"""

from __future__ import annotations

import _io
import atexit
import contextlib
import faulthandler
import gc
import os
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any, NoReturn

from windlass.exchange_threads import wait_for_exchange_threads

# The interpreter ends these itself.
_NEVER_SPARED = ("sys", "builtins", "__main__")

# Instead of an exit code, where a KeyboardInterrupt was not caught.
INTERRUPTED = -2

_spared: dict[str, Any] = {}


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


def prepare() -> None:
    """Called before anything of the user's is imported: handlers registered first run last."""
    atexit.register(_set_aside)
    atexit.register(wait_for_exchange_threads)


@contextlib.contextmanager
def sparing() -> Iterator[None]:
    """Modules imported inside this block are not torn down when a rank ends."""
    before = _find_finalizers()
    yield
    for finalizer in _find_finalizers() - before:
        finalizer.atexit = False
    _spared.update(
        (name, module) for name, module in sys.modules.items() if name not in _NEVER_SPARED
    )
    _leave_libraries()


def _find_finalizers() -> set[Any]:
    finalize = getattr(sys.modules.get("weakref"), "finalize", None)
    return set(getattr(finalize, "_registry", ()))


def _leave_libraries() -> None:
    """Have C's `exit` end the process once it has run every handler that is registered from now on."""
    import ctypes

    libc = ctypes.CDLL(None)
    if not (hasattr(libc, "on_exit") and hasattr(libc, "__cxa_atexit")):
        return  # a C library without them takes its time instead
    libc.on_exit(libc._exit, None)  # noqa: SLF001 - the name that C gives it
    at_exit = getattr(libc, "__cxa_atexit")
    with contextlib.suppress(OSError, AttributeError, ValueError):
        cxx = ctypes.CDLL("libstdc++.so.6", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        cout = ctypes.addressof(ctypes.c_char.in_dll(cxx, "_ZSt4cout"))
        if ctypes.c_void_p.from_address(cout).value:  # somebody uses it, and so has made it
            at_exit(cxx._ZNSo5flushEv, ctypes.c_void_p(cout), None)  # noqa: SLF001 - std::cout.flush()
    at_exit(libc.fflush, None, None)


def _set_aside() -> None:
    """The last exit handler of a rank: hide from the interpreter what it need not tear down."""
    if not _spared:
        gc.unfreeze()  # else what a frozen object refers to would stay
        return
    _flush_files()
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_spared))
    for name, module in _spared.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
    _tie_modules()


def _tie_modules() -> None:
    """Have the interpreter empty each module that is left, also one that something set aside refers to.

    It empties those that outlive its last collection, and knows them by the module, not by its variables,
    which functions keep alive alone.
    """
    for name, module in sys.modules.items():
        if isinstance(module, types.ModuleType) and name not in ("sys", "builtins"):
            vars(module)["__windlass_module__"] = module


def _flush_files() -> None:
    """Flush what the user's code left open, even where only a module that is set aside knows of it."""
    for thing in gc.get_objects():  # made since the fork: what was there before is frozen
        if issubclass(type(thing), _io._IOBase):  # noqa: SLF001 - asks the object nothing
            # closed, read only, a full disk, a user's own class
            with contextlib.suppress(Exception):
                thing.flush()


def leave(code: int) -> NoReturn:
    """Unwind to the top of the process, where the interpreter ends it."""
    if code == INTERRUPTED:  # which ends an interpreter by the signal itself
        # the exception has been told already
        sys.excepthook = lambda *_: None
        raise KeyboardInterrupt
    sys.exit(code)
