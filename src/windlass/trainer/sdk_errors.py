"""Errors of Windlass that are also what Kubeflow's SDK raises in that place, so an `except` holds."""

from __future__ import annotations

from windlass.errors import JobError, JobNotFound, SpecError, WaitTimeout


class WrongArgument(SpecError, ValueError):
    """A call that cannot be made as it was made; a ValueError in the SDK."""


class JobExists(SpecError, RuntimeError):
    """A job of that name is there already; a RuntimeError in the SDK."""


class JobMissing(JobNotFound, RuntimeError):
    """There is no job of that name; a RuntimeError in the SDK."""


class JobFailed(JobError, RuntimeError):
    """A job that was waited for has failed; a RuntimeError in the SDK."""


class NotInTime(WaitTimeout, TimeoutError):
    """What was waited for did not happen in time, and the job goes on; a TimeoutError in the SDK."""
