"""The contract suite runs once for every engine; without a cluster, once less.

`on` runs and submits on one engine, `shared` is a folder that the ranks and the test both see. A test that
cannot hold on a cluster is marked `local_only`, one that means nothing locally `cluster_only`, both with the
reason; one that is about something not every dialect can is marked `needs_can` with what that is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cluster_shared import SharedFolder, make_shared
from stateful_set_dialect import STATEFUL_SET
from waits import find_left_over

import windlass as wl
from windlass import names
from windlass.engines.dialects import table
from windlass.engines.dialects.kubernetes import KUBERNETES
from windlass.kube.kinds import ObjectKind

if TYPE_CHECKING:
    from cluster_space import Space

PROJECT = Path(__file__).parents[2]
# Where a project lies in a pod. Written out: this is what users see.
CODE = Path("/windlass/job/code")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "on" not in metafunc.fixturenames:
        return
    engines: list[Any] = []
    if not metafunc.definition.get_closest_marker("cluster_only"):
        engines.append("local")
    needed = {mark.args[0] for mark in metafunc.definition.iter_markers("needs_can")}
    if not metafunc.definition.get_closest_marker("local_only"):
        engines += [
            pytest.param(dialect.name, marks=pytest.mark.cluster)
            for dialect in (KUBERNETES, STATEFUL_SET)
            if needed <= dialect.can
        ]
    metafunc.parametrize("on", engines, indirect=True)


class Runner:
    """run and submit on one engine."""

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
        """Run something that must not succeed."""
        job = self.submit(target, args, kwargs, **settings)
        status = job.wait(120)
        assert status.phase.value in ("failed", "cancelled"), status
        return job

    def there(self, path: Path, *, project: Path = PROJECT) -> Path:
        """Where the ranks find a file or folder of a project."""
        return path if self.space is None else CODE / path.relative_to(project)

    @property
    def kind(self) -> ObjectKind:
        """Of the main object of a job."""
        return table.load_dialect(self.engine).kind

    @property
    def own_moments(self) -> set[str]:
        """What a job's timeline has on this engine alone."""
        return set() if self.space is None else {"queued", "scheduled", "image", "container"}

    def left_of(self, job: wl.Job) -> list[str]:
        """What there is of a job outside its own folder: processes, objects."""
        if self.space is None:
            return find_left_over(Path(os.environ["WINDLASS_HOME"]))
        return self.space.find_objects(f"{names.LABEL_JOB}={job.id}")

    def clean(self) -> None:
        """End what runs; in a namespace, which tests share, also remove it."""
        known = {job.id for job in wl.jobs()}
        for job in self.submitted:
            if job.id in known:
                job.cancel(now=True)
                job.wait(60)
        if self.space is None:
            return
        for job in wl.jobs():  # also those of wl.run and of other clients
            job.cancel(now=True)
            job.wait(60)
            job.remove()
        assert wl.jobs() == []


@pytest.fixture
def on(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runner]:
    space = None
    if request.param != "local":
        monkeypatch.setitem(table._DIALECTS, STATEFUL_SET.name, "stateful_set_dialect:STATEFUL_SET")
        space = request.getfixturevalue("space")
        for name, value in {**space.settings, "WINDLASS_ENGINE": request.param}.items():
            monkeypatch.setenv(name, value)
    runner = Runner(request.param, space)
    yield runner
    runner.clean()


@pytest.fixture
def shared(on: Runner, tmp_path: Path) -> SharedFolder:
    return make_shared(on.space.files if on.space else None, tmp_path)
