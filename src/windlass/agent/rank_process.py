"""Process of a rank: set up like a fresh interpreter after the fork, and shut down like one at the end.

A rank unwinds to the top of the process, so the interpreter performs its usual shutdown. It joins threads,
runs exit handlers, clears `__main__` and finalizes objects. It also flushes stdio and C streams, and runs C
exit handlers. Modules that the fork server loaded are not torn down: torch's modules and the static objects
of its libraries would take a quarter of a second in every rank. The fork server imports this module before
torch.
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

# The interpreter tears these down itself.
_NEVER_SPARED = ("sys", "builtins", "__main__")

# Stands for an uncaught KeyboardInterrupt in place of an exit code.
INTERRUPTED = -2

_spared: dict[str, Any] = {}


def settle_python() -> None:
    """Set up streams, fault handler, threads and seeds as in a fresh interpreter."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()
    with contextlib.suppress(AttributeError):  # the forked thread still has the server's native ID
        threading.main_thread()._set_native_id()  # type: ignore[attr-defined]  # noqa: SLF001
    _draw_seeds()


def _draw_seeds() -> None:
    """Seed the generators that a fresh interpreter seeds. Python's `random` reseeds itself at each fork."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)


def prepare() -> None:
    """Register exit handlers. Runs before any import of user code, because the first registered run last."""
    atexit.register(_hide_spared_modules)
    atexit.register(wait_for_exchange_threads)


@contextlib.contextmanager
def sparing() -> Iterator[None]:
    """Exempt modules that are imported in this block from the tear-down of a rank."""
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
    """Make C's `exit` end the process after the handlers that are registered from now on.

    Handlers that were registered earlier do not run.
    """
    import ctypes

    libc = ctypes.CDLL(None)
    if not (hasattr(libc, "on_exit") and hasattr(libc, "__cxa_atexit")):
        return  # without them, the exit is only slower
    libc.on_exit(libc._exit, None)  # noqa: SLF001 - the name of the C function
    at_exit = getattr(libc, "__cxa_atexit")
    with contextlib.suppress(OSError, AttributeError, ValueError):
        cxx = ctypes.CDLL("libstdc++.so.6", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        cout = ctypes.addressof(ctypes.c_char.in_dll(cxx, "_ZSt4cout"))
        if ctypes.c_void_p.from_address(cout).value:  # it is initialized, so a library uses it
            at_exit(cxx._ZNSo5flushEv, ctypes.c_void_p(cout), None)  # noqa: SLF001 - std::cout.flush()
    at_exit(libc.fflush, None, None)


def _hide_spared_modules() -> None:
    """Hide the spared modules from the interpreter. This is the last exit handler of a rank."""
    if not _spared:
        gc.unfreeze()  # otherwise objects that frozen ones refer to are never finalized
        return
    _flush_files()
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_spared))
    for name, module in _spared.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
    _tie_modules()


def _tie_modules() -> None:
    """Make the interpreter clear every remaining module, even one that a spared module refers to.

    It clears the modules that survive its last collection. A function keeps only the variables of its module
    alive, not the module, so each module gets a reference to itself there.
    """
    for name, module in sys.modules.items():
        if isinstance(module, types.ModuleType) and name not in ("sys", "builtins"):
            vars(module)["__windlass_module__"] = module


def _flush_files() -> None:
    """Flush the files that user code left open, even if only a spared module refers to them."""
    for (
        thing
    ) in gc.get_objects():  # only objects made since the fork, because earlier ones are frozen
        if issubclass(type(thing), _io._IOBase):  # noqa: SLF001 - runs no code of the object
            # the file may be closed or read-only, the disk full, or the class the user's own
            with contextlib.suppress(Exception):
                thing.flush()


def leave(code: int) -> NoReturn:
    """Unwind to the top of the process, where the interpreter ends it."""
    if code == INTERRUPTED:  # ends the interpreter by the signal itself
        # the exception has been printed already
        sys.excepthook = lambda *_: None
        raise KeyboardInterrupt
    sys.exit(code)
