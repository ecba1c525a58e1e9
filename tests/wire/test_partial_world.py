"""Ranks of nodes in an attempt on fewer nodes."""

from __future__ import annotations

import pytest
from kube.plans import make_pod_plan

from windlass.wire.file_sync import is_from_lead
from windlass.wire.job_folder import JobFolder, write_atomically
from windlass.wire.status import read_world, render_world

PLAN = make_pod_plan(nodes=4, min_nodes=1, procs=2)


@pytest.mark.parametrize("present", [[0], [0, 3], [0, 1, 2]])
def test_world_round_trips_with_its_ranks(tmp_path, present):
    folder = JobFolder(tmp_path)
    folder.attempt(1).mkdir()
    world = PLAN.on_nodes(present)
    write_atomically(folder.world(1), render_world(world))
    found = read_world(folder, PLAN, 1)
    assert found == world.nodes
    assert [node.index for node in found] == present
    assert [rank for node in found for rank in node.ranks] == list(range(2 * len(present)))


def test_an_attempt_on_all_nodes_needs_no_file(tmp_path):
    assert read_world(JobFolder(tmp_path), PLAN, 0) == PLAN.nodes


def test_file_is_sent_to_clients():
    assert is_from_lead("attempt-3/world.json")
