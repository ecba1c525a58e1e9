"""Errors of Windlass, grouped by cause. Each error has a hint with the next action.

    WindlassError
      SpecError         the request is invalid
        BundleError       files or objects cannot or must not be sent to nodes
      JobError          the user's code ran and failed
        RankFailed        a rank was killed, exited early, or raised an error that cannot be rebuilt
        RemoteError       a value or an exception cannot be rebuilt in this process
        JobTimeout        the job reached its time limit
        JobCancelled      a user or client cancelled the job
        StepFailed        a step of an image failed on a node
      NodeLost          a node was lost
      EngineError       Windlass or its platform failed
        EngineMissing     the cluster lacks an operator or version
        JobNotFound       the job is unknown here
        WaitTimeout       the wait ended before the job
        KeysReplaced      the job's keys differ from those stored on this machine
        ProtocolError     a peer uses another protocol or version

`hint` is the next action. `retryable` is True if the same call may succeed later. Every module imports this
one, so it uses only the standard library.
"""

from __future__ import annotations


class WindlassError(Exception):
    """Base class of all errors that Windlass raises."""

    exit_code = 3
    retryable = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.hint, self.__dict__))


def _rebuild(
    cls: type[WindlassError], message: str, hint: str, state: dict[str, object]
) -> WindlassError:
    error = cls.__new__(cls)
    WindlassError.__init__(error, message, hint=hint)
    error.__dict__.update(state)
    return error


def count_noun(count: int, noun: str) -> str:
    """Return a count with its noun for messages, such as `1 rank` or `2 ranks`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


class SpecError(WindlassError):
    """The request is invalid or cannot be fulfilled as given."""

    exit_code = 2


class BundleError(SpecError):
    """Files or objects cannot or must not be sent to nodes."""


class JobError(WindlassError):
    """The job ran and failed."""

    exit_code = 1


class RankFailed(JobError):
    """A rank raised, was killed or exited early. The verdict names the rank and the cause."""


class RemoteError(JobError):
    """A returned value or exception cannot be rebuilt in this process. The message names its type."""


class JobTimeout(JobError):
    """The job reached its time limit."""


class JobCancelled(JobError):
    """A user cancelled the job, or its client disconnected."""


class StepFailed(JobError):
    """A step of an image (pip_install, run) failed on a node. The next call runs the step again."""


class NodeLost(WindlassError):
    """A node was lost, because its agent or its machine died."""

    exit_code = 1
    retryable = True


class EngineError(WindlassError):
    """The engine or its platform failed."""


class EngineMissing(EngineError):
    """The cluster lacks an operator that the engine needs, or has the wrong version of it."""


class JobNotFound(EngineError):
    """The job is unknown here."""

    exit_code = 2


class WaitTimeout(EngineError):
    """The wait timed out before the job ended. The job continues."""

    retryable = True


class KeysReplaced(EngineError):
    """The keys of a job that was submitted from this machine have been replaced."""


class ProtocolError(EngineError):
    """A peer uses another version of the protocol, or another protocol."""
