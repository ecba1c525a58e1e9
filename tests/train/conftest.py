"""Fixtures of the training library's tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from windlass.train.parallel.context import Context
from windlass.train.preemption import Preemption


@pytest.fixture
def alone(tmp_path: Path) -> Context:
    """Return the context of a process without a launcher and without signal handlers."""
    return Context(
        rank=0,
        world_size=1,
        local_rank=0,
        local_world_size=1,
        node=0,
        num_nodes=1,
        attempt=0,
        device=torch.device("cpu"),
        out=tmp_path,
        preemption=Preemption(),
    )
