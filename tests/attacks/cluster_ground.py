"""Project in a namespace of a real cluster, for attacks, with cleanup."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster_space import Space
from waits import wait_for

import windlass as wl
from windlass import names
from windlass.kube.objects.kinds import JOBS, PODS

WORK = """
import os, time

def hello():
    print("hello from", os.environ["RANK"], flush=True)
    return int(os.environ["RANK"])

def stay():
    print("up", flush=True)
    time.sleep(600)
"""


@contextmanager
def working_in(space: Space, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Space]:
    """Create a project with a few functions that submits to the namespace by default.

    Deletes all jobs and pods of the namespace on exit.
    """
    folder.mkdir()
    (folder / "windlass.toml").touch()
    (folder / "work.py").write_text(WORK)
    monkeypatch.chdir(folder)
    for name, value in space.settings.items():
        monkeypatch.setenv(name, value)
    try:
        yield space
    finally:
        for job in space.api.list(JOBS, labels=names.LABEL_JOB):
            space.api.delete(JOBS, job["metadata"]["name"])
        for pod in space.api.list(PODS, labels=names.LABEL_JOB):
            space.api.delete(PODS, pod["metadata"]["name"], grace_s=0)
        wait_for(lambda: not space.find_objects(names.LABEL_JOB), "all objects are deleted")


def wait_until_up(job: wl.Job) -> None:
    """Wait until the job has printed "up", which it does once its ranks run."""
    wait_for(lambda: any(line.text == "up" for line in job.logs()), f"{job.id} is up")
