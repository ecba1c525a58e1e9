"""A real call lead behind a real socket, whose nodes and clients are controlled by a test.

Tests send messages, and check the messages that nodes and clients receive. Only `serve_calls` knows how a
call lead is assembled. Node 0 is in the lead's process, as always. All others connect over links.
"""

from __future__ import annotations

import asyncio
import gc
import io
import itertools
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tls_peers import settle, until

from windlass.agent.agent_context import AgentContext
from windlass.agent.inputs import Inputs
from windlass.agent.lead.calls.call_lead import CallLead
from windlass.agent.lead.calls.call_server import CallServer
from windlass.agent.lead.lead_server import LeadServer
from windlass.agent.lead.status_writer import StatusWriter
from windlass.agent.link import endpoints
from windlass.agent.projects import Projects
from windlass.bundle.archive import write_archive
from windlass.bundle.manifest import EMPTY, Manifest, make_delta
from windlass.bundle.scan import scan
from windlass.plan.plan import Facts, NodePlan, make_plan
from windlass.spec.job_spec import JobSpec
from windlass.spec.work import Calls
from windlass.wire.job_folder import JobFolder
from windlass.wire.message import Direction, Message
from windlass.wire.messages.calls import (
    COMPUTE_LEAD_TO_CLIENT,
    AskCall,
    AskInfo,
    CallEnded,
    CallProfile,
    CallResults,
    ComputeInfo,
    ProjectPlace,
    SetProfile,
    WorldRequest,
)
from windlass.wire.messages.computes import (
    COMPUTE_NODE_TO_LEAD,
    LEAD_TO_COMPUTE_NODE,
    CallAnswer,
    CodeSynced,
    ForkWorld,
    NodeSetUp,
    RunCall,
    SetUpNode,
    SyncCode,
)
from windlass.wire.messages.jobs import CancelJob, JoinLead
from windlass.wire.messages.link import Heartbeat, Welcome
from windlass.wire.messages.worlds import EndWorld, OpenStore, RankEnded, StoreReady, WorldCleared
from windlass.wire.results import ErrorInfo, Outcome
from windlass.wire.status import JobStatus

JOB = "warm-ab2cd"
PROJECT = "project-1"
WAIT_S = 30.0
STORE_PORT = 29_511
_UNSAID = (Heartbeat, Welcome)

# How an obedient node answers its orders. A test removes an entry to send that answer itself.
OBEDIENT: dict[type[Message], Callable[[Any], Message]] = {
    EndWorld: lambda order: WorldCleared(world=order.world),
    SetUpNode: lambda order: NodeSetUp(digest=order.digest),
    SyncCode: lambda order: CodeSynced(project=order.project, digest=order.digest),
    OpenStore: lambda order: StoreReady(number=order.number, port=STORE_PORT),
}


def make_profile(
    *,
    nodes: int = 2,
    procs: int = 1,
    ranks: list[int] | None = None,
    min_nodes: int | None = None,
    digest: str = "",
    **changes: Any,
) -> CallProfile:
    """Return a call profile as a client sends it, by default for two nodes of one rank each."""
    fewest = nodes if min_nodes is None else min_nodes
    asked: dict[str, Any] = {
        "name": "work",
        "framework": "spmd",
        "slot": "",
        "instance": "",
        "world": WorldRequest(nodes=nodes, min_nodes=fewest, procs=procs, ranks=ranks),
        "store": False,
        "preload": [],
        "start": "",
        "env": {},
        "project": ProjectPlace(key=PROJECT, digest=digest) if digest else ProjectPlace(),
        "version": "",
        "is_watched": False,
        "method": "",
        "collect": "all",
        "stream": False,
        "timeout_s": None,
        "launch_timeout_s": WAIT_S,
        "detach": False,
        "sources": {},
    }
    return CallProfile(**{**asked, **changes})


class Party:
    """A peer of the lead. It records all messages in order, and marks those a test has read."""

    def __init__(self, reads: Direction) -> None:
        self._reads = reads
        self._noted: set[int] = set()
        self.heard: list[tuple[Message, bytes]] = []
        self.link: Any = None
        self.has_hung_up = False  # True once the lead has hung up
        self._reading: asyncio.Task[None] | None = None

    async def connect(self, path: Path, role: str, node: int | None = None, **hello: Any) -> None:
        self.link = await endpoints.connect(
            path, role=role, job_id=JOB, node=node, timeout_s=WAIT_S, also=hello
        )
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        async for frame in self.link.frames():
            self.take(self._reads.read(frame.header), frame.body)
        self.has_hung_up = True

    def take(self, message: Message, body: bytes = b"") -> None:
        if not isinstance(message, _UNSAID):
            self.heard.append((message, body))

    def say(self, message: Message, body: bytes = b"") -> None:
        self.link.send(message, body)

    def find(self, kind: type[Message], **fields: Any) -> list[Any]:
        """Return all received messages of a kind that have these fields."""
        return [m for m, _ in self.heard if type(m) is kind and _fits(m, fields)]

    async def hear(self, kind: type[Message], **fields: Any) -> Any:
        """Wait for the next unread message of a kind, and return it."""
        return (await self.hear_whole(kind, **fields))[0]

    async def hear_whole(self, kind: type[Message], **fields: Any) -> tuple[Any, bytes]:
        """Wait for the next unread message of a kind, and return it with its body."""

        def find_unread() -> int | None:
            for place, (message, _) in enumerate(self.heard):
                if type(message) is kind and _fits(message, fields) and place not in self._noted:
                    return place
            return None

        await until(
            lambda: find_unread() is not None, f"{kind.__name__} {fields} in {self.heard}", WAIT_S
        )
        place = find_unread()
        assert place is not None
        self._noted.add(place)
        return self.heard[place]

    async def hang_up(self) -> None:
        if self._reading is not None:
            await self.link.close()
            await asyncio.wait({self._reading}, timeout=WAIT_S)


def _fits(message: Message, fields: dict[str, Any]) -> bool:
    return all(getattr(message, name) == value for name, value in fields.items())


class Client(Party):
    """Client on its own link."""

    _numbers = itertools.count(1)

    def __init__(self) -> None:
        super().__init__(COMPUTE_LEAD_TO_CLIENT)
        self.profiles: list[CallProfile] = []  # already sent

    def call(
        self,
        profile: CallProfile | None = None,
        body: bytes = b"",
        *,
        again: str = "",
        **fields: Any,
    ) -> str:
        """Ask for a call and return its id. `again` repeats an earlier id.

        The profile is sent when it is first used on this link.
        """
        profile = profile or make_profile()
        if profile not in self.profiles:
            self.profiles.append(profile)
            self.say(SetProfile(key=f"p{len(self.profiles) - 1}", profile=profile))
        call_id = again or f"{JOB}.{next(self._numbers)}"
        about = {"profile": f"p{self.profiles.index(profile)}", "sizes": [len(body)], **fields}
        self.say(AskCall(id=call_id, **about), body)
        return call_id

    def kinds(self, call_id: str) -> list[str]:
        """Return the kinds of the messages received about a call."""
        return [m.kind for m, _ in self.heard if getattr(m, "id", "") == call_id]

    async def info(self) -> ComputeInfo:
        """Ask about the compute. By then the lead has handled all earlier messages of this link."""
        self.say(AskInfo())
        return await self.hear(ComputeInfo)

    async def end_of(self, call_id: str) -> CallEnded:
        """Wait for a call to end and return how. A successful end may be part of the last results."""

        def find() -> list[Any]:
            said = [m for m, _ in self.heard if getattr(m, "id", "") == call_id]
            return [m for m in said if type(m) is CallEnded or getattr(m, "ends", False)]

        await until(lambda: bool(find()), f"the end of {call_id} in {self.heard}", WAIT_S)
        [end] = find()
        return end if type(end) is CallEnded else CallEnded(id=call_id, state="returned")

    def values(self, call_id: str) -> dict[int, bytes]:
        """Return the results of a call by rank."""
        values: dict[int, bytes] = {}
        for message, body in self.heard:
            if type(message) is CallResults and message.id == call_id:
                for answer in message.answers:
                    size = sum(answer.sizes)
                    values[answer.rank], body = body[:size], body[size:]
        return values


class Node(Party):
    """Node that records its orders and sends messages. Node 0 has no link."""

    def __init__(self, index: int, to_lead: Callable[..., None] | None = None) -> None:
        super().__init__(LEAD_TO_COMPUTE_NODE)
        self.index = index
        self.acts = dict(OBEDIENT)
        self._to_lead = to_lead

    def take(self, message: Message, body: bytes = b"") -> None:
        super().take(message, body)
        if (act := self.acts.get(type(message))) is not None:
            asyncio.get_running_loop().call_soon(self.say, act(message))

    def say(self, message: Message, body: bytes = b"") -> None:
        if self._to_lead is None:
            self.link.send(message, body)
        else:
            self._to_lead(0, COMPUTE_NODE_TO_LEAD.read(message.to_header()), body)

    def worlds(self) -> list[int]:
        """Return the worlds whose ranks the node was ordered to fork."""
        return [order.world for order in self.find(ForkWorld)]


@dataclass
class Run:
    """A call that the lead has sent to the ranks. The test answers for them."""

    call: str
    world: int
    order: RunCall
    body: bytes
    ranks: dict[int, Node]  # the node of each rank

    def answer(self, rank: int, value: bytes = b"", **fields: Any) -> None:
        about = {"call": self.call, "rank": rank, "sizes": [len(value)], "at_s": time.time()}
        self.ranks[rank].say(CallAnswer(**{**about, **fields}), value)

    def fail(self, rank: int, text: str = "no", *, kind: str = "ValueError", at_s: float = 0.0):
        error = ErrorInfo(type=f"builtins.{kind}", message=text)
        self.answer(rank, b"pickled", state="raised", error=error, at_s=at_s or time.time())

    def lose(self, rank: int, *, given: str | None = None, answered: str = "", **fields: Any):
        """Report that a rank's process has died."""
        about = {"rank": rank, "attempt": self.world, "state": "killed", "signal": 9}
        outcome = Outcome(**{**about, "at_s": time.time(), **fields})
        given = self.call if given is None else given
        message = RankEnded(given=given, answered=answered, outcome=outcome)
        self.ranks[rank].say(message)

    def finish(self) -> None:
        """Report that all ranks have returned."""
        for rank in self.ranks:
            self.answer(rank)


@dataclass
class CodeFolder:
    """Project folder on a client's machine."""

    root: Path
    manifest: Manifest = EMPTY

    def write(self, **files: str) -> tuple[SyncCode, bytes]:
        """Change files, and return the update that a client would send for them."""
        before = self.manifest
        for name, text in files.items():
            (self.root / f"{name}.py").write_text(text)
        self.manifest = scan(self.root, sorted(path.name for path in self.root.iterdir()))
        return self.render(before)

    def render(self, base: Manifest = EMPTY) -> tuple[SyncCode, bytes]:
        packed = io.BytesIO()
        write_archive(self.root, make_delta(base, self.manifest), packed)
        order = SyncCode(project=PROJECT, base=base.digest, digest=self.manifest.digest)
        return order, packed.getvalue()


@dataclass
class Compute:
    """The lead under test, its nodes and its clients."""

    path: Path  # path of the lead's socket
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
        """Join as a node, the way an agent does."""
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
        """Break a node's link, and wait until the lead has noticed."""
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
        """Wait until all ranks of a call have received it, on any nodes."""

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
        """Return the nodes and ranks of a world, as sent to the nodes."""
        orders = [o for node in self.nodes.values() for o in node.find(ForkWorld, world=world)]
        return tuple(orders[0].nodes)

    def layout(self, world: int) -> dict[int, list[int]]:
        """Return the ranks of each node."""
        return {plan.index: list(plan.ranks) for plan in self.plan_of(world)}

    async def run(self, client: Client, profile: CallProfile | None = None) -> Run:
        """Run a whole call that succeeds. Its ranks have exited afterwards, unless they are kept."""
        call = client.call(profile)
        run = await self.given(call)
        run.finish()
        assert (await client.end_of(call)).state == "returned"
        await self.rest(client)
        return run

    async def rest(self, client: Client) -> None:
        """Wait until nothing is running, waiting or being cleaned up."""
        while (await client.info()).idle_s == 0:
            pass

    async def end(self, why: str = "the test is over") -> None:
        """End the compute as a client does, with nodes that obey every order."""
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
    """Run `story` with a compute and return its result. All nodes join unless `here` is given."""
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
        projects = Projects(context)
        lead = CallLead(
            plan,
            status_writer,
            address="127.0.0.1",
            projects=projects,
            keeps_logs=is_pod,
        )
        call_server = CallServer(context, lead, projects, spill)
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
    gc.collect()  # attributes leaked sockets to this test instead of a later one
    return outcome


def shorten(monkeypatch: Any, **limits: float) -> None:
    """Set internal limits that are not settings, such as how long a lead waits before it acts."""
    from windlass.agent.lead import stores
    from windlass.agent.lead.calls import call_lead, call_queue, call_runner

    places = {
        "abandoned_s": (call_lead, "_ABANDONED_S"),
        "clear_s": (call_runner, "CLEAR_MARGIN_S"),
        "calls_per_store": (stores, "_MAX_CALLS"),
        "kept_calls": (call_queue, "KEPT_CALLS"),
        "kept_ids": (call_queue, "KEPT_IDS"),
    }
    for name, limit in limits.items():
        monkeypatch.setattr(*places[name], limit)
