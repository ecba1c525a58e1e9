"""What became of one rank's work: run it, write its result, tell the agent, wait for the peers.

Runs in the rank, on the user's values and exceptions, and does with them what the interpreter would. A
process that the user's code forked is no rank: it leaves no result and tells nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass import names, records
from windlass.agent.rank import report
from windlass.agent.rank.error_info import make_error, report_uncaught
from windlass.agent.rank.peer_release import PeerRelease
from windlass.agent.rank.rank_exit import INTERRUPTED
from windlass.errors import BundleError
from windlass.wire import pickling
from windlass.wire.message import Message
from windlass.wire.messages.ranks import RankDone, RankRaised, RankRunning
from windlass.wire.results import ResultHeader, write_result
from windlass.wire.states import RankState

_MAX_TEXT = 10_000


class RankOutcome:
    """What one rank says of itself: to its result file, and to its agent."""

    def __init__(
        self, path: Path, *, rank: int, attempt: int, root: str, owes_result: bool
    ) -> None:
        self._path = path
        self._owes_result = owes_result
        self._who: dict[str, Any] = {"rank": rank, "attempt": attempt}
        self._root = root
        self._pid = os.getpid()
        self._agent = os.environ.get(names.REPORT_SOCKET, "")
        self._has_peers = os.environ.get(names.WORLD_SIZE) != "1"
        self._release: PeerRelease | None = None

    def take(
        self, call: Callable[[], Any], explain: Callable[[BaseException], BaseException]
    ) -> int:
        """Run the work and report its outcome, errors as `explain` has them; the process's exit code."""
        try:
            value = call()
        except BaseException as error:  # noqa: BLE001 - whatever the user's code raises is its outcome
            raised = explain(error)
        else:
            return self._returned(value)
        # out of the except clause: what a hook raises now is not raised while handling this
        try:
            return self._exited(raised) if isinstance(raised, SystemExit) else self._raised(raised)
        finally:
            del raised  # it holds this frame, which holds it

    def tell_running(self) -> None:
        """The user's code is entered now."""
        self._notify(RankRunning(**self._who, at_s=time.time()))

    def _notify(self, message: Message) -> None:
        if self._agent:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(1.0)
                report.send(sender, self._agent, records.to_json(message.to_header()))

    def wait_for_peers(self, limit_s: float) -> None:
        """Keep this process and its connections until the agent says that all ranks are done."""
        if self._release is not None:
            self._release.wait(limit_s)

    # -- how it ended --------------------------------------------------------------------------

    def _returned(self, value: Any) -> int:
        if self._is_fork:
            return 0
        try:
            payload = pickling.dump(value, name="result")
        except BundleError as error:
            return self._raised(error)
        try:
            text, is_json, plain = describe(value)
            self._write(payload, state=RankState.RETURNED, repr=text, is_json=is_json, json=plain)
        except OSError as error:
            if not self._owes_result:  # a script that ends well has ended well, on a full disk too
                return self._done()
            what = f"the result of {len(payload)} bytes could not be kept: {error.strerror}"
            return self._raised(OSError(error.errno, what, str(self._path)))
        return self._done()

    def _done(self) -> int:
        self._expect_release()
        self._notify(RankDone(**self._who, at_s=time.time()))
        return 0

    def _exited(self, error: SystemExit) -> int:
        code = read_exit_code(error)
        if code == 0:
            return self._returned(None)
        if not isinstance(error.code, int):
            print(error.code, file=sys.stderr)  # noqa: T201 - as Python does
        if not self._is_fork:
            info = make_error(error, root=self._root)
            self._tell(b"", state=RankState.EXITED, exit_code=code, error=info)
        return code

    def _raised(self, error: BaseException) -> int:
        info = make_error(error, root=self._root)
        report_uncaught(error, is_last=True)
        if not self._is_fork:
            try:
                payload = pickling.dump(error, name="exception")
            except BundleError:
                payload = b""
            self._tell(payload, state=RankState.RAISED, error=info)
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1

    # -- telling it ----------------------------------------------------------------------------

    @property
    def _is_fork(self) -> bool:
        return os.getpid() != self._pid

    def _tell(self, payload: bytes, **fields: Any) -> None:
        header = self._make_header(fields)
        with contextlib.suppress(OSError):  # a full disk: the agent is told all the same
            write_result(self._path, header, payload)
        self._expect_release()
        # last, since from here on this rank is being stopped
        self._notify(RankRaised(**self._who, at_s=time.time(), header=header))

    def _write(self, payload: bytes, **fields: Any) -> None:
        write_result(self._path, self._make_header(fields), payload)

    def _make_header(self, fields: dict[str, Any]) -> ResultHeader:
        python = platform.python_version()
        return ResultHeader(at_s=time.time(), python=python, **self._who, **fields)

    def _expect_release(self) -> None:
        """Listen for the agent's word before it is told that this rank is done."""
        if not (self._agent and self._has_peers):
            return
        with contextlib.suppress(OSError):
            self._release = PeerRelease(Path(self._agent).parent, **self._who)


def read_exit_code(error: SystemExit) -> int:
    """The exit code of a process that raised this, as Python and the system define it."""
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


def describe(value: Any) -> tuple[str, bool, Any]:
    """A result for people (bounded text) and for programs (JSON, when it is that and small)."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a user's __repr__ may raise anything
        text = f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
    try:
        plain = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return text[:_MAX_TEXT], False, None
    is_json = len(plain) <= _MAX_TEXT and not records.is_deep(value)
    return text[:_MAX_TEXT], is_json, value if is_json else None
