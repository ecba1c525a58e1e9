"""Lead of warm nodes without sockets or processes: every call ends, whatever happens to its ranks."""

from __future__ import annotations

import asyncio
import time

import pytest

from windlass import records
from windlass.agent.lead.calls.call_lead import CallLead
from windlass.agent.lead.calls.call_state import Call
from windlass.agent.lead.status_writer import StatusWriter
from windlass.plan.plan import Facts, make_plan
from windlass.spec.job_spec import JobSpec
from windlass.spec.work import Calls
from windlass.wire.job_folder import JobFolder
from windlass.wire.messages.calls import CallProfile, ProjectPlace, WorldRequest
from windlass.wire.messages.computes import COMPUTE_NODE_TO_LEAD
from windlass.wire.messages.jobs import JoinLead
from windlass.wire.results import Outcome
from windlass.wire.status import FailureKind

WAIT_S = 20.0


class Compute:
    """Lead with nodes that only record orders. The test sends their messages."""

    def __init__(self, folder, num_nodes):
        spec = JobSpec(work=Calls(), name="warm", engine="local", nodes=num_nodes, procs=1)
        plan = make_plan(spec, job_id="warm-abcde", now_s=time.time(), facts=Facts(environ={}))
        self.lead = CallLead(plan, StatusWriter(plan, JobFolder(folder)))
        self.orders = []
        self.num_calls = 0
        for index in range(num_nodes):
            self.join(index)

    def join(self, index):
        def hear(order, *_body):
            self.orders.append((index, order.to_header()))

        self.lead.join(index, hear, JoinLead(pid=1, python="3.12.1"))

    def say(self, index, kind, **fields):
        self.lead.receive(index, COMPUTE_NODE_TO_LEAD.read({"type": kind, **fields}))

    def ask(self, *, slot="", nodes=2, instance=""):
        self.num_calls += 1
        asked = CallProfile(
            name="work",
            method="",
            slot=slot,
            instance=instance,
            world=WorldRequest(nodes=nodes, min_nodes=nodes, procs=1),
            store=False,
            framework="spmd",
            preload=[],
            env={},
            start="",
            is_watched=False,
            sources={},
            project=ProjectPlace(),
            version="",
            collect="all",
            stream=False,
            detach=False,
            timeout_s=None,
            launch_timeout_s=WAIT_S,
        )
        call = Call(f"call-{self.num_calls}", asked, [], b"", f"{nodes}")
        self.lead.ask(call)
        return call

    async def until(self, is_so):
        async def look():
            while not is_so():
                await asyncio.sleep(0)

        await asyncio.wait_for(look(), WAIT_S)

    async def given(self, call):
        """Wait until the call is given to ranks, and return the number of their world."""

        def find():
            kinds = [order for _, order in self.orders if order["type"] == "call"]
            return [order["world"] for order in kinds if order["id"] == call.id]

        await self.until(lambda: call.is_final or find())
        return find()[-1]

    def answer(self, call, rank):
        about = {"call": call.id, "rank": rank, "state": "returned", "at_s": time.time()}
        self.say(rank, "answer", sizes=[], **about)

    def gone(self, rank, world, *, given="", answered=""):
        outcome = Outcome(rank=rank, attempt=world, state="killed", at_s=time.time(), signal=9)
        about = {"given": given, "answered": answered}
        self.say(rank, "outcome", outcome=records.to_json(outcome), **about)

    def clear(self, world, nodes=2):
        for index in range(nodes):
            self.say(index, "cleared", world=world)

    async def ended(self, call):
        await self.until(lambda: call.is_final)
        return call.verdict


@pytest.fixture
def play(tmp_path):
    """Return a function that runs a test's coroutine concurrently with the lead."""

    def run(part, *, num_nodes=2):
        async def main():
            compute = Compute(tmp_path / "job", num_nodes)
            leading = asyncio.ensure_future(compute.lead.run())
            try:
                await part(compute)
            finally:
                compute.lead.end(FailureKind.CANCELLED, "the test is over")
                for world in compute.lead.worlds.all():
                    compute.clear(world.number)
                await asyncio.wait_for(leading, WAIT_S)

        asyncio.run(main())

    (tmp_path / "job").mkdir()
    return run


async def run_well(compute, slot=""):
    """Run one call that returns. Afterwards its ranks are kept, or spare ones wait."""
    call = compute.ask(slot=slot)
    world = await compute.given(call)
    for rank in (1, 0):
        compute.answer(call, rank)
    assert await compute.ended(call) is None
    if not slot:
        compute.clear(world)
        await compute.until(lambda: compute.lead.is_idle)
    return world


@pytest.mark.parametrize("slot", ["", "kept"])
def test_rank_that_died_before_the_call_arrived_fails_it(play, slot):
    """The node reports the end without naming the call, because the call had not arrived."""

    async def part(compute):
        await run_well(compute, slot)
        call = compute.ask(slot=slot)
        world = await compute.given(call)
        compute.gone(1, world, answered="call-1" if slot else "")
        verdict = await compute.ended(call)
        assert (verdict.kind, verdict.rank, verdict.signal) == (FailureKind.KILLED, 1, "SIGKILL")

    play(part)


def test_rank_that_died_after_its_answer_does_not_fail_the_call(play):
    """This holds even while the answer, which may be large, is still being sent."""

    async def part(compute):
        await run_well(compute, "kept")
        call = compute.ask(slot="kept")
        world = await compute.given(call)
        compute.gone(1, world, answered=call.id)
        compute.answer(call, 0)
        compute.answer(call, 1)
        assert await compute.ended(call) is None
        again = compute.ask(slot="kept")
        compute.clear(world)
        assert await compute.given(again) != world

    play(part)


def test_a_node_without_the_ranks_of_a_call_fails_it(play):
    async def part(compute):
        await run_well(compute)
        call = compute.ask()
        world = await compute.given(call)
        compute.say(1, "absent", world=world)
        verdict = await compute.ended(call)
        assert (verdict.rank, verdict.node) == (1, 1)

    play(part)


def test_reports_of_another_world_do_not_fail_the_call(play):
    async def part(compute):
        first = await run_well(compute, "kept")
        call = compute.ask(slot="other")
        world = await compute.given(call)
        compute.gone(1, first, answered="call-1")
        compute.say(1, "absent", world=first)
        for rank in (0, 1):
            compute.answer(call, rank)
        assert await compute.ended(call) is None
        assert world != first

    play(part)


def test_a_call_that_reached_none_of_the_waiting_ranks_is_given_to_new_ones(play):
    async def part(compute):
        await run_well(compute)
        call = compute.ask()
        world = await compute.given(call)
        for rank in (0, 1):
            compute.gone(rank, world)
        compute.clear(world)
        await compute.until(lambda: call.attempt and call.attempt.number != world)
        for rank in (0, 1):
            compute.answer(call, rank)
        assert await compute.ended(call) is None

    play(part)


def test_a_call_that_reached_one_rank_is_never_given_again(play):
    async def part(compute):
        await run_well(compute)
        call = compute.ask()
        world = await compute.given(call)
        compute.gone(0, world, given=call.id)
        compute.gone(1, world)
        verdict = await compute.ended(call)
        assert verdict.kind is FailureKind.KILLED
        assert call.attempt.number == world

    play(part)


def test_new_ranks_that_die_immediately_are_not_replaced_forever(play):
    async def part(compute):
        call = compute.ask()
        world = await compute.given(call)
        for rank in (0, 1):
            compute.gone(rank, world)
        verdict = await compute.ended(call)
        assert verdict.kind is FailureKind.KILLED

    play(part)


def test_call_waits_for_a_node_lost_while_old_ranks_end(play):
    """The call must not start on ranks that no node has forked."""

    async def part(compute):
        old = await run_well(compute, "kept")
        compute.gone(1, old, answered="call-1")
        call = compute.ask(slot="kept")
        await compute.until(lambda: (1, "stop") in [(i, o["type"]) for i, o in compute.orders])
        compute.lead.lose(1, "its link broke")
        compute.clear(old)
        await compute.until(lambda: not compute.lead.worlds.all())
        compute.join(1)
        world = await compute.given(call)
        assert (1, world) in [(i, o.get("world")) for i, o in compute.orders if o["type"] == "call"]
        for rank in (0, 1):
            compute.answer(call, rank)
        assert await compute.ended(call) is None

    play(part)
