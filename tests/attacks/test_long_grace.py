"""Long grace: a node that is cut off kills its ranks before they are replaced, whatever `--grace` is.

Ranks here ignore SIGTERM and have a grace period of five minutes. Agents are real, and their connections are
severed.
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


def test_follower_that_is_cut_off(tmp_path):
    with open_ground(tmp_path, nodes=2, min_nodes=2) as ground:
        lead = ground.start_all()
        ground.sever(1)
        ground.relays.pop(1)
        ground.lead_to(lead, 1)
        ground.start("1-again", 1)  # sooner than Kubernetes ever would
        ground.wait_for_ranks(1, 2, 40)
        finish(ground, lead)


def test_lead_that_is_cut_off(tmp_path):
    with open_ground(tmp_path, nodes=2, min_nodes=2) as ground:
        ground.start_all()
        ground.sever(1)
        other = ground.start("0-again", 0, num_losses=1)
        ground.relays[1].divert(other.port)
        ground.wait_for_ranks(1, 2, 40)
        finish(ground, other)


def test_cut_during_the_grace_period(tmp_path):
    """The attempt is already stopping, with minutes of grace remaining, when the network is cut."""
    with open_ground(tmp_path, nodes=2, min_nodes=2) as ground:
        lead = ground.start_all()
        follower = ground.agents["1"]
        follower.process.send_signal(signal.SIGTERM)
        wait_for(lambda: lead.status().phase is Phase.STOPPING, "the attempt is being ended", 30)
        ground.sever(1)
        ground.relays.pop(1)
        ground.lead_to(lead, 1)
        ground.start("1-again", 1)
        ground.wait_for_ranks(1, 2, 40)
        finish(ground, lead)


@pytest.mark.parametrize("index", [0, 1])
def test_stopping_node_that_is_not_cut_off_keeps_its_grace(tmp_path, index):
    """The next attempt starts only after the node's last rank has exited by itself."""
    with open_ground(tmp_path, nodes=2, min_nodes=1, grace_s=6.0) as ground:
        lead = ground.start_all()
        leaving = ground.agents[str(index)]
        leaving.process.send_signal(signal.SIGTERM)
        if index == 0:
            lead = ground.start("0-again", 0, num_losses=1)
            ground.relays[1].target = lead.port
        ground.wait_for_ranks(1, 1, 40)
        leaving.process.wait(30)
        finish(ground, lead)
        first, second = sorted(ground.spans().values())
        assert first[1] - first[0] > 5.0  # the grace period was not shortened
        assert second[0] > first[1]
