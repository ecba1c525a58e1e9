"""How a rank ended, judged from its exit code, its result file and whether it was asked to.

Pure, but for reading the error file that torch's `record` writes.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

from windlass import records
from windlass.errors import ProtocolError
from windlass.trusted import open_now
from windlass.wire.results import ErrorInfo, Outcome, ResultHeader
from windlass.wire.states import RankState

_MAX_ERROR_BYTES = 4 << 20


def judge_exit(
    *,
    rank: int,
    attempt: int,
    code: int,
    header: ResultHeader | None,
    error: ErrorInfo | None,
    owes_result: bool,
    at_s: float,
    stopped_at_s: float | None,
    out_of_memory: bool,
    was_killed: bool = False,
) -> Outcome:
    """The outcome of a rank whose process is gone; `stopped_at_s` and `was_killed` say what we did to it.

    A rank that owes no result (a script, a command) has done its work when it exits with 0, however it did.
    """
    outcome = Outcome(rank=rank, attempt=attempt, state=RankState.STOPPED, at_s=at_s)
    if code == 0 and (
        not owes_result or (header is not None and header.state == RankState.RETURNED)
    ):
        return replace(
            outcome, state=RankState.RETURNED, at_s=header.at_s if header else at_s, exit_code=0
        )
    if header is not None and header.state != RankState.RETURNED:
        was_first = stopped_at_s is None or header.at_s < stopped_at_s
        return header.outcome() if was_first else replace(outcome, exit_code=code)
    # a SIGKILL that was not ours came before our order to stop, even if we hear of it after
    if stopped_at_s is not None and (was_killed or code != -signal.SIGKILL):
        return outcome
    if code < 0:
        return replace(
            outcome,
            state=RankState.KILLED,
            signal=-code,
            out_of_memory=out_of_memory and code == -signal.SIGKILL,
        )
    return replace(outcome, state=RankState.EXITED, exit_code=code, error=error)


def read_error_file(path: Path) -> ErrorInfo | None:
    """What torch's `record` left of an exception; None when there is nothing, or nothing readable."""
    try:
        with open(path, "rb", opener=open_now) as file:
            data = file.read(_MAX_ERROR_BYTES + 1)
        message = records.parse(data, path.name, max_bytes=_MAX_ERROR_BYTES)["message"]
    except (OSError, ProtocolError, KeyError, TypeError):
        return None
    text, extra = _read_message(message)
    if not text:
        return None
    type_name, _, rest = text.partition(": ")
    traceback = str(extra.get("py_callstack", ""))
    return ErrorInfo(type=type_name, message=rest, traceback=traceback).clip()


def _read_message(message: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        return str(message.get("message", "")), extra if isinstance(extra, dict) else {}
    return str(message), {}
