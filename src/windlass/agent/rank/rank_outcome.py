"""Outcome of one rank: run the work, write the result, notify the agent, and wait for the peers.

This module runs in the rank. It treats the user's values and exceptions as the interpreter would, and leaves
Windlass's own frames out of tracebacks. A process that the user's code forked is not a rank, so it writes no
result and sends no reports.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import platform
import socket
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from windlass import names, records
from windlass.agent.rank_process import INTERRUPTED
from windlass.errors import BundleError
from windlass.wire import pickling, rank_reports
from windlass.wire.message import Message
from windlass.wire.messages.ranks import RankDone, RankRaised, RankRunning
from windlass.wire.rank_reports import PeerRelease
from windlass.wire.results import (
    MAX_MESSAGE,
    MAX_TRACEBACK,
    ErrorInfo,
    ResultHeader,
    describe_value,
    write_result,
)
from windlass.wire.states import RankState

# read from a code object, because byte code in an archive keeps the file names it was compiled with
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname((lambda: 0).__code__.co_filename)))
_OURS = tuple(os.path.join(_PACKAGE, folder, "") for folder in ("agent", "wire", "frameworks"))
_LIBRARIES = tuple(
    path
    for key in ("stdlib", "platstdlib", "purelib", "platlib")
    if (path := sysconfig.get_path(key))
)


def make_error(error: BaseException, *, root: str) -> ErrorInfo:
    """Return the exception as data, with the file and line of the user's code."""
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
    """Return the traceback as Python prints it, starting at the user's first frame."""
    return "".join(traceback.format_exception(type(error), error, _trim(error.__traceback__)))


def report_uncaught(error: BaseException, *, is_last: bool) -> None:
    """Handle an uncaught exception as Python does: set `sys.last_*`, then call `sys.excepthook`.

    `sys.last_*` is set only with `is_last`, because a process that continues must not keep the exception's
    frames and their objects alive.
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
    except BaseException as bad:  # noqa: BLE001 - the user's hook may raise anything
        bad.__traceback__ = _trim(bad.__traceback__)
        sys.stderr.write(f"Error in sys.excepthook:\n{format_error(bad)}\n")
        sys.stderr.write(f"Original exception was:\n{format_error(error)}")
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()


def _message(error: BaseException) -> str:
    if isinstance(error, SystemExit) and isinstance(error.code, int) and error.__cause__:
        error = error.__cause__  # more useful than the exit code
    try:
        return str(error)
    except Exception as bad:  # noqa: BLE001 - a user's __str__ may raise anything
        return f"<its __str__ raised {type(bad).__name__}>"


def _trim(tb: TracebackType | None) -> TracebackType | None:
    first = tb
    while first is not None:
        name = first.tb_frame.f_code.co_filename
        if not name.startswith((*_OURS, "<frozen ")):
            return first
        first = first.tb_next
    return None


def _find_line(error: BaseException, root: str) -> tuple[str, int]:
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno or 0
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith((*_OURS, "<frozen "))
    ]
    own = [(n, line) for n, line in frames if not n.startswith(_LIBRARIES)]
    in_project = [(n, line) for n, line in own if _is_below(n, root)]
    return next((lines[-1] for lines in (in_project, own, frames) if lines), ("", 0))


def _is_below(name: str, root: str) -> bool:
    return bool(root) and name.startswith(root.rstrip(os.sep) + os.sep)


class RankOutcome:
    """Reporter of one rank's outcome, to its result file and to its agent."""

    def __init__(
        self, path: Path, *, rank: int, attempt: int, root: str, needs_result: bool
    ) -> None:
        self._path = path
        self._needs_result = needs_result
        self._identity: dict[str, Any] = {"rank": rank, "attempt": attempt}
        self._root = root
        self._pid = os.getpid()
        self._agent = os.environ.get(names.REPORT_SOCKET, "")
        self._has_peers = os.environ.get(names.WORLD_SIZE) != "1"
        self._release: PeerRelease | None = None

    def take(
        self, call: Callable[[], Any], explain: Callable[[BaseException], BaseException]
    ) -> int:
        """Run the work and report its outcome. Return the exit code of the process.

        `explain` replaces an exception with the one to report.
        """
        try:
            value = call()
        except BaseException as error:  # noqa: BLE001 - any exception of the user's code is the outcome
            raised = explain(error)
        else:
            return self._returned(value)
        # outside the except clause, so that an exception in a hook does not get this exception as its context
        try:
            return self._exited(raised) if isinstance(raised, SystemExit) else self._raised(raised)
        finally:
            del raised  # breaks the reference cycle between the exception and this frame

    def report_running(self) -> None:
        """Report that the user's code starts now."""
        self._notify(RankRunning(**self._identity, at_s=time.time()))

    def _notify(self, message: Message) -> None:
        if self._agent:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(1.0)
                rank_reports.send(sender, self._agent, records.to_json(message.to_header()))

    def wait_for_peers(self, limit_s: float) -> None:
        """Keep this process and its connections open until the agent reports that all ranks are done."""
        if self._release is not None:
            self._release.wait(limit_s)

    # -- outcomes ------------------------------------------------------------------------------

    def _returned(self, value: Any) -> int:
        if self._is_fork:
            return 0
        try:
            payload = pickling.dump(value, name="result")
        except BundleError as error:
            return self._raised(error)
        try:
            text, is_json, plain = describe_value(value)
            self._write(payload, state=RankState.RETURNED, repr=text, is_json=is_json, json=plain)
        except OSError as error:
            if not self._needs_result:  # a full disk must not make a successful script fail
                return self._done()
            what = f"cannot write the result of {len(payload)} bytes: {error.strerror}"
            return self._raised(OSError(error.errno, what, str(self._path)))
        return self._done()

    def _done(self) -> int:
        self._expect_release()
        self._notify(RankDone(**self._identity, at_s=time.time()))
        return 0

    def _exited(self, error: SystemExit) -> int:
        code = read_exit_code(error)
        if code == 0:
            return self._returned(None)
        if not isinstance(error.code, int):
            print(error.code, file=sys.stderr)  # noqa: T201 - as Python does
        if not self._is_fork:
            info = make_error(error, root=self._root)
            self._report_failure(b"", state=RankState.EXITED, exit_code=code, error=info)
        return code

    def _raised(self, error: BaseException) -> int:
        info = make_error(error, root=self._root)
        report_uncaught(error, is_last=True)
        if not self._is_fork:
            try:
                payload = pickling.dump(error, name="exception")
            except BundleError:
                payload = b""
            self._report_failure(payload, state=RankState.RAISED, error=info)
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1

    # -- reporting -----------------------------------------------------------------------------

    @property
    def _is_fork(self) -> bool:
        return os.getpid() != self._pid

    def _report_failure(self, payload: bytes, **fields: Any) -> None:
        header = self._make_header(fields)
        with contextlib.suppress(OSError):  # the agent is notified even if the disk is full
            write_result(self._path, header, payload)
        self._expect_release()
        # last, because the agent may stop this rank as soon as it gets the report
        self._notify(RankRaised(**self._identity, at_s=time.time(), header=header))

    def _write(self, payload: bytes, **fields: Any) -> None:
        write_result(self._path, self._make_header(fields), payload)

    def _make_header(self, fields: dict[str, Any]) -> ResultHeader:
        python = platform.python_version()
        return ResultHeader(at_s=time.time(), python=python, **self._identity, **fields)

    def _expect_release(self) -> None:
        """Open the socket for the agent's release before this rank reports that it is done."""
        if not (self._agent and self._has_peers):
            return
        with contextlib.suppress(OSError):
            self._release = PeerRelease(Path(self._agent).parent, **self._identity)


def read_exit_code(error: SystemExit) -> int:
    """Return the exit code of a process that raises this exception, as Python and the system define it."""
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1
