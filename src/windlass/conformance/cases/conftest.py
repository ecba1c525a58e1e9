"""The contract: cases that must pass on every engine. A pytest plugin sets the engine that they run on.

`on` runs and submits jobs on one engine. `shared` is a folder that ranks and case can both access. Markers:

- `local_only`: the case does not apply to clusters (with the reason).
- `cluster_only`: the case does not apply to one machine (with the reason).
- `needs_can`: the case needs a capability that not every dialect has.
- `needs_right`: the case does more than a user's Role allows.
- `engine_matters`: the result depends on where nodes come from.
- `quick`: the case starts no job.

By default users run the cases marked `engine_matters` or `quick`.

This file does not provide the engine and `space`. `windlass.conformance` does when a user runs the cases.
Otherwise the project's conftest does, and runs them on every engine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from clean_home import home
from cluster_shared import SharedFolder, make_shared
from waits import find_leftovers

import windlass as wl
from windlass import names
from windlass.bundle.select import find_root
from windlass.engines.dialects.dialect import Dialect
from windlass.engines.engine_table import find_dialect, load_dialect
from windlass.errors import EngineMissing
from windlass.kube.client.access import check_needs
from windlass.kube.objects.kinds import ObjectKind

if TYPE_CHECKING:
    from cluster_space import Space

__all__ = ["home"]

PROJECT = find_root(Path(__file__))
# Path of a project in a pod. A literal, because users see this path.
CODE = Path("/windlass/job/code")


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "local_only(reason): a contract that does not apply to clusters",
        "cluster_only(reason): a contract that does not apply to one machine",
        "engine_matters: a contract that depends on where nodes come from",
        "quick: a contract that starts no job",
        "needs_can(capability): a contract that needs a capability not every dialect has",
        "needs_right(verb, resource): a case that needs a right that jobs do not need",
        "long: a case that takes many seconds",
    ):
        config.addinivalue_line("markers", line)


class Runner:
    """Runner that runs and submits jobs on one engine."""

    def __init__(self, engine: str, space: Space | None = None) -> None:
        self.engine = engine
        self.space = space
        self.submitted: list[wl.Job] = []

    def run(self, target: Any, args: Any = (), kwargs: Any = None, **settings: Any) -> list[Any]:
        return wl.run(target, args, kwargs, quiet=True, engine=self.engine, **settings)

    def submit(self, target: Any, args: Any = (), kwargs: Any = None, **settings: Any) -> wl.Job:
        job = wl.submit(target, args, kwargs, engine=self.engine, **settings)
        self.submitted.append(job)
        return job

    def fail(self, target: Any, args: Any = (), kwargs: Any = None, **settings: Any) -> wl.Job:
        """Run something that must fail, and return its job."""
        job = self.submit(target, args, kwargs, **settings)
        status = job.wait(120)
        assert status.phase.value in ("failed", "cancelled"), status
        return job

    def path_in_rank(self, path: Path, *, project: Path = PROJECT) -> Path:
        """Return the path at which ranks find a file or folder of a project."""
        return path if self.space is None else CODE / path.relative_to(project)

    @property
    def dialect(self) -> Dialect:
        return load_dialect(self.engine)

    @property
    def kind(self) -> ObjectKind:
        """Kind of a job's main object."""
        return self.dialect.kind

    @property
    def own_moments(self) -> set[str]:
        """Moments that only this engine adds to a job's timeline."""
        return set() if self.space is None else {"queued", "scheduled", "image", "container"}

    def find_remains(self, job: wl.Job) -> list[str]:
        """Return the processes or objects of a job that exist outside its own folder."""
        if self.space is None:
            return find_leftovers(Path(os.environ["WINDLASS_HOME"]))
        return self.space.find_objects(f"{names.LABEL_JOB}={job.id}", main=self.kind)

    def clean(self) -> None:
        """End running jobs. In a namespace, which tests share, also remove them."""
        known = {job.id for job in wl.jobs()}
        for job in self.submitted:
            if job.id in known:
                job.cancel(now=True)
                job.wait(60)
        if self.space is None:
            return
        for job in self._own_jobs():  # includes jobs of wl.run and of other clients
            job.cancel(now=True)
            job.wait(60)
            job.remove()
        assert self._own_jobs() == []

    def _own_jobs(self) -> list[wl.Job]:
        foreign = self.space.list_foreign(self.kind)
        return [job for job in wl.jobs() if job.id not in foreign]


@pytest.fixture
def on(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Runner]:
    if find_dialect(request.param) is None:
        if request.param != "local":
            monkeypatch.setenv("WINDLASS_ENGINE", request.param)
        runner = Runner(request.param)
    else:
        space = request.getfixturevalue("space")
        _skip_if_missing(request, space, request.param)
        if space.config:
            file = tmp_path / "config/windlass/config.toml"
            file.parent.mkdir(parents=True)
            file.write_text(space.config)
        for name, value in {**space.settings, "WINDLASS_ENGINE": request.param}.items():
            monkeypatch.setenv(name, value)
        runner = Runner(request.param, space)
        runner.clean()  # remove what earlier tests left in this namespace
    yield runner
    runner.clean()


def _skip_if_missing(request: pytest.FixtureRequest, space: Space, engine: str) -> None:
    try:
        check_needs(space.api, load_dialect(engine).needs)
    except EngineMissing as missing:
        pytest.skip(missing.message)
    for verb, resource in (mark.args for mark in request.node.iter_markers("needs_right")):
        if not space.may(verb, resource):
            pytest.skip(f"you may not {verb} {resource} in namespace {space.namespace}")


@pytest.fixture
def shared(on: Runner, tmp_path: Path) -> SharedFolder:
    if on.space and on.space.files is None:
        pytest.skip(f"pods share no folder: {on.space.no_files}")
    return make_shared(on.space.files if on.space else None, tmp_path)
