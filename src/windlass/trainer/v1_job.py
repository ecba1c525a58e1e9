"""TrainerJob: what `create_job` returns. A name, a status in v1's words, and what no SDK has: results."""

from __future__ import annotations

from typing import Any

from windlass.client.jobs.job import Job
from windlass.engines.protocol import Engine
from windlass.trainer.statuses import name_v1


class TrainerJob:
    """One job by the name that the user gave it."""

    def __init__(self, name: str, job: Job, engine: Engine) -> None:
        self.name = name
        self.job = job
        self.engine = engine

    def __repr__(self) -> str:
        return f"TrainerJob({self.name!r}, {str(self.job.ref)!r})"

    @property
    def status(self) -> str:
        """Now: Created, Running, Restarting, Suspended, Succeeded or Failed."""
        return name_v1(self.job.status())

    def results(self, *, timeout_s: float | None = None) -> list[Any]:
        """What the function returned on every rank, in rank order; raises what it raised.

        timeout_s: how long to wait for the job's end; None: for ever.
        """
        return self.job.results(timeout_s=timeout_s)

    def exception(self, *, timeout_s: float | None = None) -> BaseException | None:
        """What made the job fail, of its own type where that can be rebuilt; None if nothing did.

        timeout_s: how long to wait for the job's end; None: for ever.
        """
        return self.job.exception(timeout_s=timeout_s)
