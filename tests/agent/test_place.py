"""Place of an agent among the nodes: all sources, their precedence, and errors for malformed values."""

from __future__ import annotations

import pytest

from windlass.agent.place import SOURCES, NodePlace, find_place
from windlass.errors import EngineError

LEAD = {"WINDLASS_LEAD": "job-1-lead"}
HOST = "job-1-7"


def test_first_index_is_added_to_the_index():
    environ = {**LEAD, "JOB_COMPLETION_INDEX": "2", "WINDLASS_FIRST_INDEX": "1"}
    assert find_place(environ, HOST).index == 3


def test_an_indexed_job():
    environ = {**LEAD, "JOB_COMPLETION_INDEX": "2", "WINDLASS_NODE_FAILURES": "3"}
    place = NodePlace(index=2, lead="job-1-lead", num_losses=3)
    assert find_place(environ, HOST) == place


def test_windlass_variables():
    environ = {**LEAD, "WINDLASS_NODE_INDEX": "1", "WINDLASS_NUM_NODES": "4"}
    assert find_place(environ, HOST) == NodePlace(index=1, lead="job-1-lead", num_nodes=4)


def test_kubeflow_trainer():
    environ = {
        "PET_NODE_RANK": "1",
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "4",
        "PET_MASTER_ADDR": "train-node-0-0.train",
        "PET_MASTER_PORT": "29500",
    }
    place = NodePlace(index=1, lead="train-node-0-0.train", num_nodes=2)
    assert find_place(environ, "train-node-0-1") == place


@pytest.mark.parametrize(
    ("rank", "host"), [(0, "train-master-0"), (1, "train-worker-0"), (3, "train-worker-2")]
)
def test_a_pytorchjob_with_a_master(rank, host):
    """Worker i is node i + 1. Its host name alone does not show this."""
    environ = {"RANK": str(rank), "WORLD_SIZE": "16", "MASTER_ADDR": "train-master-0"}
    assert find_place(environ, host) == NodePlace(index=rank, lead="train-master-0")


def test_an_elastic_pytorchjob_without_a_master():
    environ = {**LEAD, "PET_NNODES": "1:4", "PET_RDZV_ENDPOINT": "train-worker-0:23456"}
    place = NodePlace(index=3, lead="job-1-lead", num_nodes=4)
    assert find_place(environ, "train-worker-3") == place


@pytest.mark.parametrize(
    ("host", "index"),
    [("job-1-0", 0), ("job-1-12", 12), ("job-1-5.job-1.default.svc.cluster.local", 5)],
)
def test_a_statefulset(host, index):
    assert find_place(LEAD, host) == NodePlace(index=index, lead="job-1-lead")


def test_the_first_source_counts():
    indexes = [source.index for source in SOURCES]
    assert indexes == ["WINDLASS_NODE_INDEX", "JOB_COMPLETION_INDEX", "PET_NODE_RANK", "RANK"]
    environ = {**LEAD, **{name: str(number) for number, name in enumerate(indexes)}}
    for number, name in enumerate(indexes):
        assert find_place(environ, HOST).index == number
        del environ[name]
    assert find_place(environ, HOST).index == 7


def test_the_first_lead_counts():
    leads = [source.lead for source in SOURCES if source.lead]
    environ = {name: name.lower() for name in leads}
    for name in leads:
        assert find_place(environ, HOST).lead == name.lower()
        del environ[name]
    with pytest.raises(EngineError, match="address of the lead is not set") as failure:
        find_place(environ, HOST)
    assert "WINDLASS_LEAD" in failure.value.hint


def test_empty_variables_are_ignored():
    """A missing pod field becomes an empty variable."""
    environ = {**LEAD, "JOB_COMPLETION_INDEX": "", "PET_NNODES": "", "WINDLASS_NODE_FAILURES": ""}
    assert find_place(environ, HOST) == NodePlace(index=7, lead="job-1-lead")


@pytest.mark.parametrize("value", ["-1", "one", "1.0", "01", " 1", "0x1", "٣", "99999999"])
@pytest.mark.parametrize("name", ["JOB_COMPLETION_INDEX", "RANK", "WINDLASS_NODE_FAILURES"])
def test_a_malformed_number_is_named(name, value):
    with pytest.raises(EngineError, match=name) as failure:
        find_place({**LEAD, name: value}, HOST)
    assert repr(value) in failure.value.message
    assert "whole number" in failure.value.message


@pytest.mark.parametrize("value", ["0", "-2", "2:", "a:b", "1:0", "two"])
def test_a_malformed_number_of_nodes_is_named(value):
    with pytest.raises(EngineError, match="PET_NNODES") as failure:
        find_place({**LEAD, "PET_NODE_RANK": "0", "PET_NNODES": value}, HOST)
    assert "MIN:MAX" in failure.value.hint


def test_a_node_beyond_the_last_one():
    with pytest.raises(EngineError, match="node 2, but there are only 2 nodes"):
        find_place({**LEAD, "PET_NODE_RANK": "2", "PET_NNODES": "2"}, HOST)


@pytest.mark.parametrize("host", ["laptop", "job1", "job-x7", "job-", "", "job-07"])
def test_place_without_any_source(host):
    with pytest.raises(EngineError, match="cannot determine the node index") as failure:
        find_place(LEAD, host)
    assert "JOB_COMPLETION_INDEX" in failure.value.message
    assert "WINDLASS_NODE_INDEX" in failure.value.hint
