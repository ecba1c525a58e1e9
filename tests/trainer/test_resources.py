"""Resources in the notation of the SDKs."""

import pytest

from windlass.trainer.sdk_errors import WrongArgument
from windlass.trainer.translate import count_processes, read_resources


@pytest.mark.parametrize(
    ("resources", "settings"),
    [
        (None, {}),
        ({}, {}),
        ({"cpu": "1", "memory": "2Gi"}, {"cpus": "1", "memory": "2Gi"}),
        ({"cpu": 4, "memory": "10G", "gpu": "1"}, {"cpus": "4", "memory": "10G", "gpus": 1}),
        ({"cpu": 1.5}, {"cpus": "1.5"}),
        ({"nvidia.com/gpu": 8}, {"gpus": 8}),
        ({"amd.com/gpu": 2}, {"gpus": 2, "gpu_resource": "amd.com/gpu"}),
        ({"mig-1g.5gb": 1}, {"gpus": 1, "gpu_resource": "nvidia.com/mig-1g.5gb"}),
        ({"storage": "1Gi"}, {"ephemeral_storage": "1Gi"}),
        ({"ephemeral-storage": "1Gi"}, {"ephemeral_storage": "1Gi"}),
    ],
)
def test_settings(resources, settings):
    assert read_resources(resources, "resources_per_worker") == settings


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ({"cpus": 1}, "did you mean 'cpu'?"),
        ({"gpu": "all"}, "'gpu' must be a whole number, not 'all'"),
        ({"gpu": 1, "amd.com/gpu": 1}, "GPUs of two kinds"),
        (["cpu"], "resources_per_worker must be a dict"),
    ],
)
def test_invalid_resources_are_refused(resources, message):
    with pytest.raises(WrongArgument) as caught:
        read_resources(resources, "resources_per_worker")
    assert message in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("resources", "processes"),
    [
        (None, None),
        ({"memory": "1Gi"}, None),
        ({"gpu": 4, "cpu": 16}, None),
        ({"cpu": 3}, 3),
        ({"cpu": "2500m"}, 3),
        ({"cpu": "100m"}, 1),
    ],
)
def test_processes_per_node_match_kubeflow_trainer(resources, processes):
    assert count_processes(resources, "resources_per_node") == processes
