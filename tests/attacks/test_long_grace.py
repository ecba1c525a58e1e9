"""Long grace: a node that is cut off ends its ranks before others take their place, whatever `--grace` says.

Ranks here are deaf to SIGTERM and have five minutes. Real agents, on lines that are severed.
"""

from __future__ import annotations

import signal

import pytest
from severable_agents import open_ground
from waits import wait_for

from windlass.wire.status import Phase

pytestmark = pytest.mark.long


def finish(ground, lead, num_worlds=2):
    (ground.notes / "done").touch()
    wait_for(lambda: (s := lead.status()) and s.phase.is_final, "the job has ended", 60)
    assert lead.status().phase is Phase.SUCCEEDED
    assert len(ground.check_one_world()) == num_worlds


def test_a_follower_that_is_cut_off(tmp_path):
    with open_ground(tmp_path, nodes=2, min_nodes=2) as ground:
        lead = ground.start_all()
        ground.sever(1)
        ground.lines.pop(1)
        ground.lead_to(lead, 1)
        ground.start("1-again", 1)  # at once: sooner than Kubernetes ever would
        ground.wait_for_ranks(1, 2, 40)
        finish(ground, lead)


def test_a_lead_that_is_cut_off(tmp_path):
    with open_ground(tmp_path, nodes=2, min_nodes=2) as ground:
        ground.start_all()
        ground.sever(1)
        other = ground.start("0-again", 0, num_losses=1)
        ground.lines[1].divert(other.port)
        ground.wait_for_ranks(1, 2, 40)
        finish(ground, other)


def test_a_cut_while_ranks_have_their_grace(tmp_path):
    """They were asked to end for another reason, and the cut comes when they have minutes left."""
    with open_ground(tmp_path, nodes=2, min_nodes=2) as ground:
        lead = ground.start_all()
        follower = ground.agents["1"]
        follower.process.send_signal(signal.SIGTERM)
        wait_for(lambda: lead.status().phase is Phase.STOPPING, "the attempt is being ended", 30)
        ground.sever(1)
        ground.lines.pop(1)
        ground.lead_to(lead, 1)
        ground.start("1-again", 1)
        ground.wait_for_ranks(1, 2, 40)
        finish(ground, lead)


@pytest.mark.parametrize("index", [0, 1])
def test_a_node_that_leaves_keeps_its_grace_and_its_place(tmp_path, index):
    """It is not cut off: nobody starts before its last rank has ended by itself."""
    with open_ground(tmp_path, nodes=2, min_nodes=1, grace_s=6.0) as ground:
        lead = ground.start_all()
        leaving = ground.agents[str(index)]
        leaving.process.send_signal(signal.SIGTERM)
        if index == 0:
            lead = ground.start("0-again", 0, num_losses=1)
            ground.lines[1].target = lead.port
        ground.wait_for_ranks(1, 1, 40)
        leaving.process.wait(30)
        finish(ground, lead)
        first, second = sorted(ground.spans().values())
        assert first[1] - first[0] > 5.0  # it was not cut short
        assert second[0] > first[1]
