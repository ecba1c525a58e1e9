"""The error tree, one family a culprit. Each error says what to do next.

    WindlassError
      SpecError         you: what was asked cannot be done as it was asked
        BundleError       files or objects that cannot or must not travel
      JobError          your code: it ran and did not succeed
        RankFailed        a rank raised something that could not be rebuilt here, was killed, or left early
        RemoteError       a value or an exception came back that this process cannot rebuild
        JobTimeout        the job's own time limit
        JobCancelled      somebody asked for it
        StepFailed        a step of an image did not succeed on a node
      NodeLost          the machine: a node went away
      EngineError       us, or what we run on
        EngineMissing     the cluster lacks what the engine needs
        JobNotFound       no such job here
        WaitTimeout       the wait ended, the job goes on
        KeysReplaced      what was submitted from here has other keys now
        ProtocolError     a peer speaks another version, or not our language

`hint` is the next thing to type; `retryable` says whether the same call may succeed later.
Standard library only; imported by everything.
"""

from __future__ import annotations


class WindlassError(Exception):
    """Root of all errors Windlass raises itself."""

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


class SpecError(WindlassError):
    """What was asked cannot be done as it was asked."""

    exit_code = 2


class BundleError(SpecError):
    """Files or objects that cannot, or must not, travel."""


class JobError(WindlassError):
    """The job ran and did not succeed."""

    exit_code = 1


class RankFailed(JobError):
    """A rank raised, was killed or left early; the verdict says which and why."""


class RemoteError(JobError):
    """Something came back that this process cannot rebuild; it names the type."""


class JobTimeout(JobError):
    """The job's own time limit ended it."""


class JobCancelled(JobError):
    """Somebody cancelled the job, or its client went away."""


class StepFailed(JobError):
    """A step of an image (pip_install, run) did not succeed on a node; it is run again next time."""


class NodeLost(WindlassError):
    """A node went away: its agent died or its machine did."""

    exit_code = 1
    retryable = True


class EngineError(WindlassError):
    """The engine, or what it runs on, did not do its part."""


class EngineMissing(EngineError):
    """The cluster lacks what the engine needs: an operator, or a version of one."""


class JobNotFound(EngineError):
    """There is no such job here."""

    exit_code = 2


class WaitTimeout(EngineError):
    """The wait ended before the job did; the job goes on."""

    retryable = True


class KeysReplaced(EngineError):
    """A job that was submitted from here has other keys now: somebody has replaced them."""


class ProtocolError(EngineError):
    """A peer speaks another version, or not our language at all."""
