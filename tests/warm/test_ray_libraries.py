"""Ray Train and Ray Data, each run once inside a compute's cluster. Skipped without `ray[train]`."""

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


def distribute(compute, function):
    return kt.fn(function).to(compute).distribute("ray", workers=1)


def test_torch_trainer(compute, tmp_path):
    assert distribute(compute, train_with_ray)(str(tmp_path)) == ""
    assert [(tmp_path / str(rank)).read_text() for rank in (0, 1)] == ["2 2", "2 2"]


def test_ray_data(compute):
    assert distribute(compute, sum_with_ray_data)() == 9900
