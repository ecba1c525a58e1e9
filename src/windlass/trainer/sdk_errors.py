"""Windlass errors that inherit from what Kubeflow's SDK raises, so that its `except` clauses still work."""

from __future__ import annotations

from windlass.errors import JobError, JobNotFound, SpecError, WaitTimeout


class WrongArgument(SpecError, ValueError):
    """An invalid call. Kubeflow's SDK raises ValueError."""


class JobExists(SpecError, RuntimeError):
    """A job of that name already exists. Kubeflow's SDK raises RuntimeError."""


class JobMissing(JobNotFound, RuntimeError):
    """No job has that name. Kubeflow's SDK raises RuntimeError."""


class JobFailed(JobError, RuntimeError):
    """A job failed during a wait. Kubeflow's SDK raises RuntimeError."""


class NotInTime(WaitTimeout, TimeoutError):
    """A wait timed out while the job continues. Kubeflow's SDK raises TimeoutError."""
