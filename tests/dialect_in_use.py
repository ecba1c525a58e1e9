"""A dialect on a real cluster: its jobs are the ones that a test makes, and none of them is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster_space import Space

import windlass as wl
from windlass.engines.dialects.dialect import Dialect
from windlass.errors import EngineMissing
from windlass.kube.client.access import check_needs


def skip_where_missing(dialect: Dialect, space: Space) -> None:
    try:
        check_needs(space.api, dialect.needs)
    except EngineMissing as missing:
        pytest.skip(missing.message)


@contextmanager
def use_dialect(
    dialect: Dialect, space: Space, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> Iterator[None]:
    """From an empty folder, so that a project fits the Secret, and a submit waits for no pod."""
    skip_where_missing(dialect, space)
    monkeypatch.chdir(folder)
    for name, value in {**space.settings, "WINDLASS_ENGINE": dialect.name}.items():
        monkeypatch.setenv(name, value)
    yield
    for job in wl.jobs():
        job.cancel(now=True)
        job.wait(60)
        job.remove()
