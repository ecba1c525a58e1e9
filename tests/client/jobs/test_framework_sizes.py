"""Resources of nodes that Ray gets from settings and from the options of workers."""

from __future__ import annotations

import pytest

from windlass.client.jobs.node_settings import make_sizes
from windlass.errors import SpecError
from windlass.frameworks.framework import load_framework
from windlass.settings import read_settings
from windlass.spec.node_resources import NodeSize

RAY = load_framework("ray")


def read(tmp_path, **flags):
    return read_settings(flags=flags, environ={}, start=tmp_path)


def test_frameworks_without_resources_get_none(tmp_path):
    assert make_sizes(load_framework("pytorch"), read(tmp_path, gpus=1), are_alike=False) is None


def test_nodes_are_equal_unless_workers_have_options(tmp_path):
    settings = read(tmp_path, cpus="4", memory="16Gi", pretend_gpus=True)
    sizes = make_sizes(RAY, settings, are_alike=False)
    assert sizes.first == sizes.others == NodeSize(cpus=4.0, memory_bytes=16 << 30)
    assert sizes.pretends_gpus
    sizes = make_sizes(RAY, settings, {"gpus": "1"}, are_alike=False)
    assert (sizes.first.gpus, sizes.others) == (0, NodeSize(gpus=1))


@pytest.mark.parametrize("options", [{"gpus": 2}, {"cpus": 5}, {"memory": "17Gi"}])
def test_pod_cannot_have_more_than_its_requests(tmp_path, options):
    settings = read(tmp_path, cpus="4", memory="16Gi", gpus=1)
    with pytest.raises(SpecError, match="all pods of a compute have the same size"):
        make_sizes(RAY, settings, options, are_alike=True)
    assert make_sizes(RAY, settings, {"gpus": 1, "cpus": 1}, are_alike=True).others.cpus == 1.0
    assert make_sizes(RAY, read(tmp_path, gpus=1), {"cpus": 9}, are_alike=True).others.cpus == 9.0
