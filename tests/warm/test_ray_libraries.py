"""Ray Train and Ray Data inside a cluster of ours, each once. Skipped where `ray[train]` is not installed."""

from __future__ import annotations

import pytest
from ray_tasks import sum_with_ray_data, train_with_ray

import windlass as kt

for package in ("ray", "pandas", "pyarrow", "tensorboardX", "torch"):
    pytest.importorskip(package, reason=f"{package} is not installed: pip install 'ray[train]'")
pytestmark = [pytest.mark.local_only, pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def compute(on):
    yield on.make(cpus="2", memory="2Gi")
    on.clean()


def spread(compute, function):
    return kt.fn(function).to(compute).distribute("ray", workers=1)


def test_torch_trainer(compute, tmp_path):
    assert spread(compute, train_with_ray)(str(tmp_path)) == ""
    assert [(tmp_path / str(rank)).read_text() for rank in (0, 1)] == ["2 2", "2 2"]


def test_ray_data(compute):
    assert spread(compute, sum_with_ray_data)() == 9900
