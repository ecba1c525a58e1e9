"""Worlds: which nodes and ranks take part, how they are numbered, and their rendezvous address."""

from __future__ import annotations

import pytest

from windlass.agent.lead.stores import Store
from windlass.agent.lead.world import World, make_world_nodes
from windlass.errors import SpecError
from windlass.frameworks.framework import load_framework
from windlass.plan.plan import Facts, make_plan
from windlass.spec.job_spec import JobSpec
from windlass.spec.work import Calls
from windlass.wire.messages.calls import WorldRequest


def make_calls_plan(nodes=3, procs=1):
    spec = JobSpec(work=Calls(fixed="x"), engine="local", nodes=nodes, procs=procs)
    return make_plan(spec, job_id="t-ab2cd", now_s=1.0, facts=Facts(environ={}))


def choose(ranks, nodes=3, procs=2):
    asked = WorldRequest(nodes=nodes, min_nodes=nodes, procs=procs, ranks=ranks)
    return [(node.index, list(node.ranks)) for node in make_world_nodes(make_calls_plan(), asked)]


def test_all_ranks():
    assert choose(None) == [(0, [0, 1]), (1, [2, 3]), (2, [4, 5])]


def test_fewer_nodes_than_there_are():
    assert choose(None, nodes=1, procs=3) == [(0, [0, 1, 2])]


@pytest.mark.parametrize(
    ("ranks", "found"),
    [
        ([0], [(0, [0])]),
        ([1, 4, 5], [(0, [0]), (2, [1, 2])]),
        ([5, 3], [(1, [0]), (2, [1])]),
        ([2, 2], [(1, [0])]),
    ],
)
def test_chosen_ranks_are_renumbered_on_their_nodes(ranks, found):
    assert choose(ranks) == found


@pytest.mark.parametrize("ranks", [[], [6], [-1], [0, 99]])
def test_unknown_ranks(ranks):
    with pytest.raises(SpecError, match="the compute has only 6 ranks"):
        choose(ranks)


def test_every_call_of_a_rendezvous_has_its_own_part():
    rendezvous, make_env = Store(1, port=29500), load_framework("pytorch").make_call_env
    first = make_env(rendezvous.describe("10.0.0.1"))
    assert first["MASTER_ADDR"] == "10.0.0.1"
    assert first["MASTER_PORT"] == "29500"
    assert first["TORCHELASTIC_USE_AGENT_STORE"] == "True"
    assert first["TORCHELASTIC_RESTART_COUNT"] == "0"
    assert make_env(rendezvous.describe("10.0.0.1")) == first
    assert rendezvous.next_part() != rendezvous.next_part()


def test_world_is_cleared_when_all_its_nodes_report_it():
    world = World(1, make_calls_plan(nodes=2), "shape")
    assert world.nodes == [0, 1]
    world.cleared.add(1)
    assert not world.is_cleared
    world.cleared.update({0, 7})
    assert world.is_cleared
