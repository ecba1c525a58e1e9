"""One process without a launcher, and its SIGTERM given back afterwards."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from windlass import names


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Iterator[None]:
    from windlass.train import context

    for name in (*names.SET_PER_RANK, names.OUT, "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    context._context = None
    yield
    context._context = None
    signal.signal(signal.SIGTERM, before)
