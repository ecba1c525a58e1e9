"""Distribution of a callable, by the arguments of `.distribute`."""

from __future__ import annotations

import pytest

from windlass.client.compute.nodes.distribution import Distribution, make_spread
from windlass.errors import SpecError


def test_names_of_other_libraries_are_equivalent():
    wanted = Distribution(framework="pytorch", workers=4, procs=2)
    assert make_spread("pytorch", workers=4, procs=2) == wanted
    assert make_spread(num_workers=4, num_proc=2) == wanted
    assert make_spread(replicas=4, nproc_per_node=2) == wanted


def test_with_monarch_every_worker_is_a_node():
    assert make_spread("monarch", workers=4).workers == 4


def test_with_ray_the_head_is_an_additional_node():
    options = {"gpus": 1, "cpus": "4", "memory": "16Gi"}
    spread = make_spread("ray", workers=4, worker_node_options=options)
    assert (spread.workers, spread.min_workers, spread.worker_node_options) == (5, 0, options)
    assert make_spread("ray", workers="2:4").min_workers == 3


@pytest.mark.parametrize(
    ("framework", "options", "message"),
    [
        ("ray", {"gpu": 1}, "worker_node_options: has no 'gpu'"),
        ("ray", "gpus=1", "worker_node_options must be a dict"),
        ("pytorch", {"gpus": 1}, "no effect with framework pytorch"),
    ],
)
def test_unsupported_options_of_workers(framework, options, message):
    with pytest.raises(SpecError, match=message):
        make_spread(framework, worker_node_options=options)


@pytest.mark.parametrize(("wrong", "hint"), [("torch", "pytorch"), ("spdm", "spmd")])
def test_misspelled_frameworks(wrong, hint):
    with pytest.raises(SpecError) as caught:
        make_spread(wrong)
    assert f"'{hint}'" in caught.value.hint


def test_misspelled_keywords():
    with pytest.raises(SpecError, match="no keyword 'worker'") as caught:
        make_spread(worker=2)
    assert "'workers'" in caught.value.hint


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2", True, None])
def test_numbers(wrong):
    with pytest.raises(SpecError, match="workers must be at least 1"):
        make_spread(workers=wrong)


def test_a_range_of_nodes():
    assert make_spread(workers="2:4") == Distribution(workers=4, min_workers=2)
    assert make_spread(nodes=" 1 : 3 ", procs=2) == Distribution(workers=3, min_workers=1, procs=2)
    assert make_spread(workers="4:4") == make_spread(workers=4)


@pytest.mark.parametrize("wrong", ["4:2", "0:2", ":2", "2:", "a:b", "2-4", "-1:2"])
def test_invalid_ranges(wrong):
    with pytest.raises(SpecError, match="workers must be at least 1, or MIN:MAX") as caught:
        make_spread(workers=wrong)
    assert 'workers="2:4"' in caught.value.hint
