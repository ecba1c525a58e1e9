"""What came back, rebuilt: values as they were, exceptions as their own type.

The remote traceback is the cause of a rebuilt exception, so both are printed. What cannot be rebuilt here
becomes a RemoteError that names it. Knows results and verdicts; nothing of engines.
"""

from __future__ import annotations

import pickle
from typing import Any

from windlass import errors
from windlass.wire.results import ErrorInfo, ResultHeader
from windlass.wire.status import FailureKind, Verdict


class RemoteTraceback(Exception):
    """The traceback of a rank, as its own Python printed it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text.rstrip()}"


def load_value(header: ResultHeader, payload: bytes) -> Any:
    """The value a rank returned."""
    try:
        return pickle.loads(payload)  # noqa: S301 - written by a rank of the user's own job
    except Exception as error:
        raise errors.RemoteError(
            f"rank {header.rank} returned {header.repr:.200}, which cannot be rebuilt here: "
            f"{type(error).__name__}: {error}",
            hint="import what it is made of here too, or return plain values",
        ) from error


def load_error(header: ResultHeader, payload: bytes) -> BaseException:
    """The exception a rank raised, of its own type when that can be rebuilt."""
    info = header.error or ErrorInfo(type="", message="unknown")
    error = _rebuild(info, payload)
    error.__cause__ = RemoteTraceback(f"rank {header.rank}:\n{info.traceback}")
    return error


def _rebuild(info: ErrorInfo, payload: bytes) -> BaseException:
    module, _, name = info.type.rpartition(".")
    if module == errors.__name__ and isinstance(getattr(errors, name, None), type):
        message, _, hint = info.message.partition("\n  hint: ")
        ours: BaseException = getattr(errors, name)(message, hint=hint)
        return ours
    try:
        error = pickle.loads(payload)  # noqa: S301 - written by a rank of the user's own job
    except Exception as why:  # noqa: BLE001 - a user's class may fail in any way
        reason = f"{type(why).__name__}: {why}" if payload else "it could not be pickled"
        return errors.RemoteError(f"{info.type}: {info.message} (not rebuilt here: {reason})")
    return error if isinstance(error, BaseException) else errors.RemoteError(info.text)


_BY_KIND: dict[FailureKind, type[errors.WindlassError]] = {
    FailureKind.LOST_NODE: errors.NodeLost,
    FailureKind.TIMEOUT: errors.JobTimeout,
    FailureKind.CANCELLED: errors.JobCancelled,
    FailureKind.START_FAILED: errors.EngineError,
    FailureKind.UNKNOWN: errors.EngineError,
    FailureKind.STEP_FAILED: errors.StepFailed,
}


def make_failure(verdict: Verdict) -> errors.WindlassError:
    """The error for a verdict without a Python exception in it."""
    cls = _BY_KIND.get(verdict.kind, errors.RankFailed)
    return cls(verdict.message, hint=verdict.next)


def make_missing_error(header: ResultHeader) -> errors.EngineError:
    """The error for a result that a rank left and that is not here; it names the rank."""
    told = header.error.message if header.error else f"the result of rank {header.rank} is missing"
    message, _, hint = told.partition("\n  hint: ")
    return errors.EngineError(message, hint=hint)
