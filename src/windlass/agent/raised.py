"""An exception as a person wants to read it: our own frames cut off, the user's line found.

Runs inside ranks, on the user's exceptions. Pure but for printing to stderr.
"""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
import traceback
from types import TracebackType

from windlass.wire.results import ErrorInfo

# as the frames name it: byte code in an archive keeps the names it was compiled with
_OURS = os.path.dirname((lambda: 0).__code__.co_filename)
_MAX_TRACEBACK = 20_000
_MAX_MESSAGE = 4_000
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
        message=_message(error)[:_MAX_MESSAGE],
        traceback=format_error(error)[-_MAX_TRACEBACK:],
        file=file,
        line=line,
        source=linecache.getline(file, line).strip()[:200] if file else "",
    )


def format_error(error: BaseException) -> str:
    """The traceback as Python prints it, starting at the user's first frame."""
    return "".join(traceback.format_exception(type(error), error, _trim(error.__traceback__)))


def print_error(error: BaseException) -> None:
    """What Python prints before it exits with 1."""
    sys.stderr.write(format_error(error))
    sys.stderr.flush()


def _message(error: BaseException) -> str:
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
    return next((found[-1] for found in (in_project, own, frames) if found), ("", 0))


def _is_below(name: str, root: str) -> bool:
    return bool(root) and name.startswith(root.rstrip(os.sep) + os.sep)
