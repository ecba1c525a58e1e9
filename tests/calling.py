"""A compute without ranks: a real lead behind a real socket; its nodes and clients say what a test says.

Tests say messages, and assert on messages and what clients are told. How a lead of calls is put together is
known to `serve_calls` alone. Node 0 is in the lead's process, as it always is; all others come over links.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from call_parties import JOB, OBEDIENT, WAIT_S, Client, Node, Run
from tls_peers import settle, until

from windlass.agent.agent_context import AgentContext
from windlass.agent.inputs import Inputs
from windlass.agent.lead.calls.call_lead import CallLead
from windlass.agent.lead.calls.call_server import CallServer
from windlass.agent.lead.lead_server import LeadServer
from windlass.agent.lead.status_writer import StatusWriter
from windlass.agent.link import endpoints
from windlass.agent.projects import Projects
from windlass.plan.plan import Facts, NodePlan, make_plan
from windlass.spec.job_spec import JobSpec
from windlass.spec.work import Calls
from windlass.wire.job_folder import JobFolder
from windlass.wire.messages.calls import CallProfile
from windlass.wire.messages.computes import ForkWorld, RunCall
from windlass.wire.messages.jobs import CancelJob, JoinLead
from windlass.wire.messages.worlds import WorldCleared
from windlass.wire.status import JobStatus


@dataclass
class Compute:
    """The lead under test, and who is there."""

    path: Path  # of the lead's socket
    folder: JobFolder
    spill: Path
    lead: Any
    status_writer: StatusWriter
    nodes: dict[int, Node] = field(default_factory=dict)
    clients: list[Client] = field(default_factory=list)
    left: list[Node] = field(default_factory=list)

    @property
    def status(self) -> JobStatus:
        return self.status_writer.status

    async def join(self, index: int) -> Node:
        """A node comes, as an agent does."""
        about = JoinLead(pid=1, python="3.12.1", host=f"host-{index}")
        if index == 0:
            node = Node(0, self.lead.receive)
            self.lead.join(0, node.take, about)
        else:
            node = Node(index)
            await node.connect(self.path, "node", index)
            node.say(about)
            await until(lambda: self.status.nodes[index].state == "joined", f"node {index}")
        self.nodes[index] = node
        return node

    async def drop(self, index: int) -> None:
        """A node's link breaks, and the lead has noticed."""
        node = self.nodes.pop(index)
        self.left.append(node)
        await node.hang_up()
        await until(lambda: self.status.nodes[index].state == "lost", f"node {index} is lost")

    async def visit(self) -> Client:
        client = Client()
        await client.connect(self.path, "client")
        self.clients.append(client)
        return client

    async def given(self, call_id: str) -> Run:
        """A call that its ranks have been given, wherever they are."""

        def orders() -> list[tuple[Node, RunCall, bytes]]:
            return [
                (node, message, body)
                for node in self.nodes.values()
                for message, body in node.heard
                if isinstance(message, RunCall) and message.id == call_id
            ]

        def are_all() -> bool:
            heard = orders()
            last = max((order.world for _, order, _ in heard), default=-1)
            have = {node.index for node, order, _ in heard if order.world == last}
            return bool(have) and have >= {
                plan.index for plan in self.plan_of(last) if plan.num_ranks
            }

        await until(are_all, f"{call_id} is given to ranks", WAIT_S)
        _, order, body = max(orders(), key=lambda one: one[1].world)
        ranks = {
            rank: self.nodes[plan.index]
            for plan in self.plan_of(order.world)
            for rank in plan.ranks
        }
        return Run(call_id, order.world, order, body, ranks)

    def plan_of(self, world: int) -> tuple[NodePlan, ...]:
        """The nodes and ranks of a world, as nodes were told."""
        orders = [o for node in self.nodes.values() for o in node.find(ForkWorld, world=world)]
        return tuple(orders[0].nodes)

    def layout(self, world: int) -> dict[int, list[int]]:
        """Which ranks are on which node."""
        return {plan.index: list(plan.ranks) for plan in self.plan_of(world)}

    async def run(self, client: Client, profile: CallProfile | None = None) -> Run:
        """A whole call that goes well; its ranks are gone, unless they are kept."""
        call = client.call(profile)
        run = await self.given(call)
        run.finish()
        assert (await client.end_of(call)).state == "returned"
        await self.rest(client)
        return run

    async def rest(self, client: Client) -> None:
        """Until nothing runs or waits, nor is still to be tidied up."""
        while (await client.info()).idle_s == 0:
            pass

    async def end(self, why: str = "the test is over") -> None:
        """A client ends the compute; nodes do as they are told."""
        for node in self.nodes.values():
            node.acts = dict(OBEDIENT)
            for world in node.worlds():
                node.say(WorldCleared(world=world))
        client = await self.visit()
        client.say(CancelJob(now=True, why=why))


def serve_calls(
    story: Callable[[Compute], Any],
    *,
    nodes: int = 2,
    here: tuple[int, ...] | None = None,
    is_pod: bool = False,
    ttl_s: float | None = None,
    steps: tuple[Any, ...] = (),
    grace_s: float = 0.1,
    **spec: Any,
) -> Any:
    """Let a story happen to a compute of some nodes, all of them `here` unless told; what it returns."""
    work = Calls(ttl_s=ttl_s, steps=steps)
    asked = JobSpec(work=work, name="warm", nodes=nodes, procs=1, grace_s=grace_s, **spec)
    plan = make_plan(asked, job_id=JOB, now_s=time.time(), facts=Facts(environ={}))

    async def play(root: Path) -> Any:
        path, folder, spill = root / "lead.sock", JobFolder(root / "job"), root / "payloads"
        folder.path.mkdir()
        spill.mkdir()
        context = AgentContext(
            plan=plan,
            folder=folder,
            index=0,
            run_dir=root,
            place=path,
            is_pod=is_pod,
        )
        status_writer = StatusWriter(plan, folder)
        node_zero = SimpleNamespace(spill=spill, projects=Projects(context))
        lead = CallLead(
            plan,
            status_writer,
            address="127.0.0.1",
            projects=node_zero.projects,
            keeps_logs=is_pod,
        )
        call_server = CallServer(context, lead, node_zero)
        lead_server = LeadServer(context, lead, Inputs(plan, folder), call_server)
        server = await endpoints.serve(path, JOB, lead_server.take)
        compute = Compute(path, folder, spill, lead, status_writer)
        leading = asyncio.ensure_future(lead.run())
        try:
            for index in range(nodes) if here is None else here:
                await compute.join(index)
            return await asyncio.wait_for(story(compute), 60)
        finally:
            if not leading.done():
                await compute.end()
            await asyncio.wait_for(leading, WAIT_S)
            for party in (*compute.clients, *compute.nodes.values()):
                await party.hang_up()
            server.close()
            await settle()
            status_writer.write()

    with tempfile.TemporaryDirectory(prefix="wl") as root:  # tmp_path is too long for a socket
        outcome = asyncio.run(play(Path(root)))
    gc.collect()  # a socket that was left open is this test's, not that of another
    return outcome


def shorten(monkeypatch: Any, **limits: float) -> None:
    """Limits that are nobody's setting: how long, or how many, before a lead does something."""
    from windlass.agent.lead import rendezvous
    from windlass.agent.lead.calls import call_lead, call_queue, call_runner

    places = {
        "abandoned_s": (call_lead, "_ABANDONED_S"),
        "clear_s": (call_runner, "CLEAR_MARGIN_S"),
        "calls_per_store": (rendezvous, "_MAX_CALLS"),
        "kept_calls": (call_queue, "KEPT_CALLS"),
        "kept_ids": (call_queue, "KEPT_IDS"),
    }
    for name, limit in limits.items():
        monkeypatch.setattr(*places[name], limit)
