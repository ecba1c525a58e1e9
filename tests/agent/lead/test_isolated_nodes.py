"""Isolated nodes of a compute: their ranks get little time, and no call starts meanwhile."""

from __future__ import annotations

import asyncio
import time

import pytest

from windlass.agent.lead.calls.call_lead import CallLead
from windlass.agent.lead.status_writer import StatusWriter
from windlass.agent.lead.world import World
from windlass.agent.node.world_ranks import WorldRanks
from windlass.agent.silence_limits import Disconnect, SilenceLimits
from windlass.plan.plan import Facts, make_plan
from windlass.spec.job_spec import JobSpec
from windlass.spec.work import Calls
from windlass.wire.job_folder import JobFolder
from windlass.wire.messages.jobs import JoinLead

SHORT = SilenceLimits(silence_s=0.05, fence_s=0.1, cut_grace_s=0.05, slack_s=0.05)


def run(tmp_path, part):
    async def main():
        spec = JobSpec(work=Calls(), name="warm", engine="local", nodes=2, procs=1)
        plan = make_plan(spec, job_id="warm-abcde", now_s=time.time(), facts=Facts(environ={}))
        lead = CallLead(plan, StatusWriter(plan, JobFolder(tmp_path)), limits=SHORT)
        orders = []
        for index in (0, 1):
            about = JoinLead(pid=1, python="3.12.1")
            lead.join(
                index, lambda order, *_body, i=index: orders.append((i, order.to_header())), about
            )
        lead.worlds.add(World(7, plan, "shape"))
        await part(lead, orders)
        lead._status_writer.write()

    asyncio.run(main())


async def wait_until_seen(lead):
    while lead.nodes.one_world.unreachable():
        await asyncio.sleep(0.01)


def test_lead_waits_until_the_ranks_of_an_isolated_node_are_dead(tmp_path):
    async def part(lead, orders):
        lead.lose(1, "it has said nothing", disconnect=Disconnect.CUT)
        assert lead.nodes.one_world.unreachable() == [1]
        lead.pool.dismiss(lead.worlds.get(7), now=False)
        assert orders[-1][1]["within_s"] == SHORT.cut_grace_s
        await asyncio.wait_for(wait_until_seen(lead), 20)

    run(tmp_path, part)


def test_cut_shortens_a_running_grace_period(tmp_path):
    async def part(lead, orders):
        lead.pool.dismiss(lead.worlds.get(7), now=False)
        assert {order["within_s"] for _, order in orders} == {None}
        lead.lose(1, "it has said nothing", disconnect=Disconnect.CUT)
        assert orders[-1] == (0, {**orders[0][1], "within_s": SHORT.cut_grace_s})

    run(tmp_path, part)


@pytest.mark.parametrize("how", ["announces", "hangs up"])
def test_lead_waits_until_a_leaving_node_has_no_ranks(tmp_path, how):
    async def part(lead, _orders):
        lead.lose(1, "it received SIGTERM", disconnect=Disconnect.LEAVING)
        assert lead.nodes.one_world.unreachable() == [1]
        if how == "announces":
            lead.record_exit(1)
        else:
            lead.lose(1, "its link broke", disconnect=Disconnect.CLOSED)
        assert lead.nodes.one_world.unreachable() == []

    run(tmp_path, part)


def test_lead_does_not_wait_for_dead_nodes_or_nodes_without_ranks(tmp_path):
    async def part(lead, _orders):
        lead.lose(1, "its link broke", disconnect=Disconnect.CLOSED)
        assert lead.nodes.one_world.unreachable() == []
        lead.worlds.forget(lead.worlds.get(7))
        lead.lose(0, "it has said nothing", disconnect=Disconnect.CUT)
        assert lead.nodes.one_world.unreachable() == []

    run(tmp_path, part)


def test_earliest_deadline_kills_the_ranks():
    async def main():
        killed = asyncio.Event()
        ranks = WorldRanks(1, grace_s=300.0)
        ranks._kill_all = killed.set
        ranks.kill_after_grace()
        ranks.kill_after_grace(within_s=0.01)
        ranks.kill_after_grace()
        await asyncio.wait_for(killed.wait(), 20)

    asyncio.run(main())
