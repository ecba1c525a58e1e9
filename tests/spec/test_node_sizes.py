"""Resources of nodes from numbers and texts."""

from __future__ import annotations

import pytest

from windlass.errors import SpecError
from windlass.spec.node_resources import NodeSize, make_size


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ({}, NodeSize()),
        ({"cpus": "", "gpus": 0, "memory": ""}, NodeSize()),
        (
            {"gpus": 1, "cpus": "4", "memory": "16Gi"},
            NodeSize(cpus=4.0, gpus=1, memory_bytes=16 << 30),
        ),
        ({"gpus": "2", "cpus": 0.5, "memory": None}, NodeSize(cpus=0.5, gpus=2)),
        ({"cpus": "500m"}, NodeSize(cpus=0.5)),
    ],
)
def test_sizes(given, size):
    assert make_size(given, "here:") == size


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gpu": 1}, "here: has no 'gpu'"),
        ({"gpus": "one"}, "here: gpus must be a whole number"),
        ({"gpus": 0.5}, "here: gpus must be a whole number"),
        ({"cpus": "many"}, "here: cpus must be a number of CPUs"),
        ({"memory": "16"}, "less than 1 MiB"),
        ({"memory": [1]}, "must be a number or a string"),
        ({"gpus": True}, "must be a number or a string"),
    ],
)
def test_invalid_sizes(given, message):
    with pytest.raises(SpecError, match=message):
        make_size(given, "here:")
