"""Nodes. Every rank is on exactly one node, in order, and names are stable."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from windlass.plan.plan import make_nodes


@given(st.integers(1, 50), st.integers(1, 50))
def test_ranks_are_partitioned(num_nodes, num_procs):
    nodes = make_nodes(num_nodes, num_procs, job_name="job")
    assert [rank for node in nodes for rank in node.ranks] == list(range(num_nodes * num_procs))
    assert [node.index for node in nodes] == list(range(num_nodes))
    assert {node.num_ranks for node in nodes} == {num_procs}
    assert all(node.ranks[0] == node.first_rank for node in nodes)


@given(st.integers(1, 50), st.integers(1, 8))
def test_names_are_distinct_and_do_not_depend_on_the_size(num_nodes, num_procs):
    names = [node.name for node in make_nodes(num_nodes, num_procs, job_name="my-job")]
    assert names == [f"my-job-node-{index}" for index in range(num_nodes)]
    assert names == [node.name for node in make_nodes(num_nodes + 1, 1, job_name="my-job")[:-1]]
