"""Calls that may start with fewer nodes than requested: after a while they start with those present."""

from __future__ import annotations

import asyncio

import pytest

from windlass import names
from windlass.agent.lead.calls.call_lead import CallLead
from windlass.agent.lead.calls.call_state import Call
from windlass.agent.lead.calls.world_pool import shape_of
from windlass.agent.lead.status_writer import StatusWriter
from windlass.plan.plan import Facts, make_plan
from windlass.spec.job_spec import JobSpec
from windlass.spec.work import Calls
from windlass.wire.job_folder import JobFolder
from windlass.wire.messages.calls import CallProfile, ProjectPlace, WorldRequest
from windlass.wire.messages.computes import COMPUTE_NODE_TO_LEAD
from windlass.wire.messages.jobs import JoinLead
from windlass.wire.status import FailureKind

_LIMIT_S = 20.0


class RecordingClient:
    """Client that records the messages about a call."""

    def __init__(self):
        self.lines = []
        self.is_over = asyncio.Event()

    def send(self, message, _body=b"", _file=""):
        header = message.to_header()
        if header["type"] == "said":
            self.lines.append(header["line"])
        elif header["type"] == "done" or header.get("ends"):
            self.is_over.set()


class Compute:
    """Lead with nodes whose ranks answer immediately."""

    def __init__(self, folder, num_nodes):
        spec = JobSpec(work=Calls(fixed="x"), engine="local", nodes=num_nodes, grace_s=0.1)
        plan = make_plan(spec, job_id="t-ab2cd", now_s=1.0, facts=Facts(environ={}))
        self.lead = CallLead(plan, StatusWriter(plan, JobFolder(folder)))
        self._worlds = {}
        self._num_calls = 0

    def join(self, *indexes):
        for index in indexes:
            about = JoinLead(pid=1, python="3.12.1")
            self.lead.join(index, lambda order, _body=b"", i=index: self._hear(i, order), about)

    def _hear(self, index, message):
        order = message.to_header()

        def say(**header):
            said = COMPUTE_NODE_TO_LEAD.read(header)
            asyncio.get_running_loop().call_soon(self.lead.receive, index, said)

        if order["type"] == "fork_world":
            self._worlds[order["world"]] = {node.index: node for node in order["nodes"]}
        elif order["type"] == "call":
            node = self._worlds[order["world"]][index]
            for rank in node.ranks:
                about = {"call": order["id"], "rank": rank, "sizes": [], "at_s": 1.0}
                say(type="answer", state="returned", **about)
        elif order["type"] == "stop":
            say(type="cleared", world=order["world"])

    async def call(self, world, *, slot="", limit_s=_LIMIT_S):
        """Make a call, and return the ranks that ran on each node, or its verdict."""
        self._num_calls += 1
        asked = CallProfile(
            name="f",
            slot=slot,
            instance="",
            env={},
            start="",
            is_watched=False,
            sources={},
            preload=[],
            store=False,
            framework="spmd",
            project=ProjectPlace(),
            version="",
            world=WorldRequest(procs=2, **world),
            method="",
            collect="all",
            stream=False,
            timeout_s=None,
            launch_timeout_s=limit_s,
            detach=False,
        )
        call = Call(f"t-ab2cd.{self._num_calls}", asked, [], b"", shape_of(asked))
        recorder = RecordingClient()
        call.listeners.append(recorder)
        self.lead.ask(call)
        await asyncio.wait_for(recorder.is_over.wait(), _LIMIT_S)
        self.said = recorder.lines
        if call.verdict is not None:
            return call.verdict
        assert sorted(call.answers) == list(range(len(call.answers)))
        return {node.index: list(node.ranks) for node in call.attempt.world.nodes}


@pytest.fixture(autouse=True)
def grace(monkeypatch):
    monkeypatch.setattr(names, "FEWER_AFTER_S", 0.05)


def lead(tmp_path, story, num_nodes=4):
    """Run a story with a lead, and return the result of the story."""

    async def run():
        compute = Compute(tmp_path, num_nodes)
        running = asyncio.ensure_future(compute.lead.run())
        try:
            return await story(compute)
        finally:
            compute.lead.end(FailureKind.CANCELLED, "the test is over", now=True)
            await asyncio.wait_for(running, _LIMIT_S)

    return asyncio.run(run())


RANGE = {"nodes": 4, "min_nodes": 2}


def test_call_starts_with_the_present_nodes(tmp_path):
    async def story(compute):
        compute.join(0, 2)
        return await compute.call(RANGE), compute.said

    ran, said = lead(tmp_path, story)
    assert ran == {0: [0, 1], 2: [2, 3]}
    assert said == ["starting with 2 of 4 nodes, without node 1, node 3"]


def test_call_waits_for_all_nodes_only_once(tmp_path, monkeypatch):
    async def story(compute):
        compute.join(0, 1)
        first = await compute.call(RANGE)
        monkeypatch.setattr(names, "FEWER_AFTER_S", 1000.0)
        second = await compute.call(RANGE)  # this would time out if it waited again
        compute.join(2, 3)
        return first, second, await compute.call(RANGE)

    two = {0: [0, 1], 1: [2, 3]}
    assert lead(tmp_path, story) == (two, two, {**two, 2: [4, 5], 3: [6, 7]})


def test_kept_ranks_stay_on_their_nodes_when_others_join(tmp_path):
    async def story(compute):
        compute.join(0, 1)
        first = await compute.call(RANGE, slot="kept")
        compute.join(2)
        return first, await compute.call(RANGE, slot="kept")

    two = {0: [0, 1], 1: [2, 3]}
    assert lead(tmp_path, story) == (two, two)


def test_call_with_too_few_nodes_fails_after_its_timeout(tmp_path):
    async def story(compute):
        compute.join(0)
        return await compute.call(RANGE, limit_s=0.3)

    verdict = lead(tmp_path, story)
    assert verdict.kind is FailureKind.START_FAILED
    assert "node 1, node 2, node 3 did not join within 0.3 s (launch_timeout)" in verdict.message


def test_call_with_all_nodes_starts_immediately(tmp_path, monkeypatch):
    monkeypatch.setattr(names, "FEWER_AFTER_S", 1000.0)

    async def story(compute):
        compute.join(0, 1)
        return await compute.call({"nodes": 2, "min_nodes": 1})

    assert lead(tmp_path, story, num_nodes=2) == {0: [0, 1], 1: [2, 3]}
