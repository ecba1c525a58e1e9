"""Environment of one process without a launcher."""

from __future__ import annotations

import pytest

from windlass import names


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    for name in (*names.SET_PER_RANK, names.OUT, "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
