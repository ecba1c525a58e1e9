"""An exception as a person wants to read it: our own frames cut off, the user's line found.

Runs inside ranks, on the user's exceptions. Pure but for what Python itself does with one that nobody caught.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import sysconfig
import traceback
from types import TracebackType

from windlass.wire.results import MAX_MESSAGE, MAX_TRACEBACK, ErrorInfo

# as the frames name it: byte code in an archive keeps the names it was compiled with
_OURS = os.path.dirname((lambda: 0).__code__.co_filename)
_LIBRARIES = tuple(
    path
    for key in ("stdlib", "platstdlib", "purelib", "platlib")
    if (path := sysconfig.get_path(key))
)


def make_error(error: BaseException, *, root: str) -> ErrorInfo:
    """The exception as data, with the user's own file and line."""
    file, line = _find_line(error, root)
    return ErrorInfo(
        type=f"{type(error).__module__}.{type(error).__qualname__}",
        message=_message(error)[:MAX_MESSAGE],
        traceback=format_error(error)[-MAX_TRACEBACK:],
        file=file,
        line=line,
        source=linecache.getline(file, line).strip()[:200] if file else "",
    )


def format_error(error: BaseException) -> str:
    """The traceback as Python prints it, starting at the user's first frame."""
    return "".join(traceback.format_exception(type(error), error, _trim(error.__traceback__)))


def report_uncaught(error: BaseException, *, is_last: bool) -> None:
    """What Python does with an exception that nobody caught: `sys.last_*`, then `sys.excepthook`.

    A process that goes on afterwards does not keep the exception: with it go its frames and all they hold.
    """
    tb = _trim(error.__traceback__)
    error.__traceback__ = tb
    if is_last:
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, tb
        if sys.version_info >= (3, 12):
            sys.last_exc = error
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    try:
        sys.excepthook(type(error), error, tb)
    except BaseException as bad:  # noqa: BLE001 - a hook of the user's
        bad.__traceback__ = _trim(bad.__traceback__)
        sys.stderr.write(f"Error in sys.excepthook:\n{format_error(bad)}\n")
        sys.stderr.write(f"Original exception was:\n{format_error(error)}")
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()


def _message(error: BaseException) -> str:
    if isinstance(error, SystemExit) and isinstance(error.code, int) and error.__cause__:
        error = error.__cause__  # which says more than the code
    try:
        return str(error)
    except Exception as bad:  # noqa: BLE001 - a user's __str__ may raise anything
        return f"<its __str__ raised {type(bad).__name__}>"


def _trim(tb: TracebackType | None) -> TracebackType | None:
    first = tb
    while first is not None:
        name = first.tb_frame.f_code.co_filename
        if not name.startswith((_OURS, "<frozen ")):
            return first
        first = first.tb_next
    return None


def _find_line(error: BaseException, root: str) -> tuple[str, int]:
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno or 0
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith((_OURS, "<frozen "))
    ]
    own = [(n, line) for n, line in frames if not n.startswith(_LIBRARIES)]
    in_project = [(n, line) for n, line in own if _is_below(n, root)]
    return next((lines[-1] for lines in (in_project, own, frames) if lines), ("", 0))


def _is_below(name: str, root: str) -> bool:
    return bool(root) and name.startswith(root.rstrip(os.sep) + os.sep)
