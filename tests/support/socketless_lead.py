"""A lead without sockets or processes, and nodes that receive its orders and act as a test says."""

from __future__ import annotations

import asyncio
import time

from windlass import records
from windlass.agent.lead.jobs.job_lead import JobLead
from windlass.agent.lead.status_writer import StatusWriter
from windlass.plan.plan import Facts, make_plan
from windlass.spec.job_spec import JobSpec
from windlass.spec.work import Script
from windlass.wire.job_folder import JobFolder
from windlass.wire.messages.jobs import NODE_TO_LEAD, JoinLead
from windlass.wire.results import Outcome


class Nodes:
    """Nodes that receive orders and act as the test says. The lead makes all decisions itself."""

    def __init__(self, lead, plan, acts):
        self.lead, self.plan, self.acts = lead, plan, acts
        self.orders: list[tuple[int, dict]] = []
        self.remembered: list[tuple[int, dict]] = []

    def join(self, *indices, **about):
        about = {"pid": 1, "python": f"{self.plan.python_minor or '3.12'}.1", **about}
        for index in indices or range(len(self.plan.nodes)):
            self.lead.join(
                index, lambda order, _body, i=index: self.hear(i, order), JoinLead(**about)
            )

    def hear(self, index, message):
        order = message.to_header()
        if order["type"] == "flush":
            asyncio.get_running_loop().call_soon(lambda: self.say(index, "flushed"))
        elif order["type"] == "remember":
            self.remembered.append((index, records.to_json(order["memory"])))
        else:
            self.orders.append((index, order))
            asyncio.get_running_loop().call_soon(self.acts, self, index, order)

    def say(self, index, kind, **fields):
        self.lead.receive(index, NODE_TO_LEAD.read({"type": kind, **fields}))

    @property
    def world(self):
        """The nodes and ranks of the current attempt."""
        return self.lead.attempt.world

    @property
    def attempt(self):
        return self.lead.attempt.number

    def ranks_of(self, index):
        return next(node.ranks for node in self.world.nodes if node.index == index)

    def end(self, rank, state, attempt=0, at_s=None, exited=True, **fields):
        outcome = Outcome(
            rank=rank, attempt=attempt, state=state, at_s=at_s or time.time(), **fields
        )
        node = self.world.node_of(rank).index
        self.say(node, "outcome", outcome=records.to_json(outcome), exited=exited)

    def succeed(self, index):
        """Report that all ranks of a node returned."""
        for rank in self.ranks_of(index):
            self.end(rank, "returned", self.attempt, exit_code=0)

    def stopped(self, index, attempt, *, but=()):
        for rank in self.ranks_of(index):
            if rank not in but:
                self.end(rank, "stopped", attempt)
        self.say(index, "cleared", world=attempt)

    def kinds(self, index=0):
        return [order["type"] for node, order in self.orders if node == index]

    def starts(self, index=0):
        """Return the start orders that a node received."""
        return [order for node, order in self.orders if node == index and order["type"] == "start"]


def lead_through(
    tmp_path,
    acts,
    *,
    join=None,
    meanwhile=None,
    memory=None,
    replaces=False,
    minor="",
    address="",
    **spec,
):
    """Run the lead of one job to its end, and return its last status and the nodes."""
    spec = {"nodes": 2, "procs": 2, "grace_s": 0.1, "join_timeout_s": 30, **spec}
    asked = JobSpec(work=Script(path="a.py"), **spec)
    facts = Facts(environ={}, replaces_nodes=replaces)
    plan = make_plan(asked, job_id="job-1", now_s=time.time(), facts=facts, python_minor=minor)

    failures: list[BaseException] = []

    async def run():
        status_writer = StatusWriter(plan, JobFolder(tmp_path))
        lead = JobLead(plan, status_writer, address=address, memory=memory)
        nodes = Nodes(lead, plan, acts)
        nodes.join(*(join or ()))
        if meanwhile is not None:
            asyncio.get_running_loop().call_soon(meanwhile, lead, nodes)
        done = asyncio.ensure_future(lead.run())
        asyncio.get_running_loop().set_exception_handler(
            lambda _, about: (failures.append(about["exception"]), done.cancel())
        )
        await asyncio.wait([done], timeout=60)
        if failures:  # raised by the test's own callbacks
            raise failures[0]
        assert done.done(), status_writer.status
        await done
        return status_writer.status, nodes

    return asyncio.run(run())


def reasons(status):
    return [(condition.type, condition.reason) for condition in status.conditions]
