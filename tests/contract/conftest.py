"""The contract suite runs once for every engine; an engine that is not here says so in one line."""

from __future__ import annotations

from typing import Any

import pytest

import windlass as wl


class Runner:
    """run and submit on one engine."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.submitted: list[wl.Job] = []

    def run(self, target: Any, args: Any = (), kwargs: Any = None, **settings: Any) -> list[Any]:
        return wl.run(target, args, kwargs, quiet=True, engine=self.engine, **settings)

    def submit(self, target: Any, args: Any = (), kwargs: Any = None, **settings: Any) -> wl.Job:
        job = wl.submit(target, args, kwargs, engine=self.engine, **settings)
        self.submitted.append(job)
        return job

    def fail(self, target: Any, args: Any = (), kwargs: Any = None, **settings: Any) -> wl.Job:
        """Run something that must not succeed."""
        job = self.submit(target, args, kwargs, **settings)
        status = job.wait(60)
        assert status.phase.value in ("failed", "cancelled"), status
        return job


@pytest.fixture(params=["local"])
def on(request: pytest.FixtureRequest) -> Any:
    runner = Runner(request.param)
    yield runner
    known = {job.id for job in wl.jobs()}
    for job in runner.submitted:
        if job.id in known:
            job.cancel(now=True)
            job.wait(30)
