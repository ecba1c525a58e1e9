"""Who speaks to a lead of calls: nodes and clients that say what a test says, and keep what they hear."""

from __future__ import annotations

import asyncio
import io
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tls_peers import until

from windlass.agent.link import endpoints
from windlass.bundle.archive import write_archive
from windlass.bundle.manifest import EMPTY, Manifest, make_delta
from windlass.bundle.scan import scan
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
    WorldAsked,
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
from windlass.wire.messages.link import Heartbeat, Welcome
from windlass.wire.messages.worlds import EndWorld, OpenStore, RankEnded, StoreReady, WorldCleared
from windlass.wire.results import ErrorInfo, Outcome

JOB = "warm-ab2cd"
PROJECT = "project-1"
WAIT_S = 30.0
STORE_PORT = 29_511
_UNSAID = (Heartbeat, Welcome)

# How a node that does as it is told answers its orders. A test takes one away to answer in its own time.
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
    """What calls have in common, as a client says it; by default on two nodes of one rank each."""
    fewest = nodes if min_nodes is None else min_nodes
    asked: dict[str, Any] = {
        "name": "work",
        "framework": "spmd",
        "slot": "",
        "instance": "",
        "world": WorldAsked(nodes=nodes, min_nodes=fewest, procs=procs, ranks=ranks),
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
    """Somebody who hears the lead: all that was said, in order; what a test has taken note of is marked."""

    def __init__(self, reads: Direction) -> None:
        self._reads = reads
        self._noted: set[int] = set()
        self.heard: list[tuple[Message, bytes]] = []
        self.link: Any = None
        self.has_hung_up = False  # the lead
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
        """All that was heard of a kind, with these fields."""
        return [m for m, _ in self.heard if type(m) is kind and _fits(m, fields)]

    async def hear(self, kind: type[Message], **fields: Any) -> Any:
        """The next message of a kind that was not noted before."""
        return (await self.hear_whole(kind, **fields))[0]

    async def hear_whole(self, kind: type[Message], **fields: Any) -> tuple[Any, bytes]:
        """The same, and its body."""

        def look() -> int | None:
            for place, (message, _) in enumerate(self.heard):
                if type(message) is kind and _fits(message, fields) and place not in self._noted:
                    return place
            return None

        await until(lambda: look() is not None, f"{kind.__name__} {fields} in {self.heard}", WAIT_S)
        place = look()
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
    """A client on a link of its own."""

    _numbers = itertools.count(1)

    def __init__(self) -> None:
        super().__init__(COMPUTE_LEAD_TO_CLIENT)
        self.profiles: list[CallProfile] = []  # that were said

    def call(
        self,
        profile: CallProfile | None = None,
        body: bytes = b"",
        *,
        again: str = "",
        **fields: Any,
    ) -> str:
        """Ask for a call, by a new id unless it is said again; its profile is said the first time."""
        profile = profile or make_profile()
        if profile not in self.profiles:
            self.profiles.append(profile)
            self.say(SetProfile(key=f"p{len(self.profiles) - 1}", profile=profile))
        call_id = again or f"{JOB}.{next(self._numbers)}"
        about = {"profile": f"p{self.profiles.index(profile)}", "sizes": [len(body)], **fields}
        self.say(AskCall(id=call_id, **about), body)
        return call_id

    def kinds(self, call_id: str) -> list[str]:
        """What was told of a call, by kind."""
        return [m.kind for m, _ in self.heard if getattr(m, "id", "") == call_id]

    async def info(self) -> ComputeInfo:
        """Ask about the compute: what was said before on this link has been dealt with by then."""
        self.say(AskInfo())
        return await self.hear(ComputeInfo)

    async def end_of(self, call_id: str) -> CallEnded:
        """How a call ended; one that went well may be told so with its last answers."""

        def find() -> list[Any]:
            said = [m for m, _ in self.heard if getattr(m, "id", "") == call_id]
            return [m for m in said if type(m) is CallEnded or getattr(m, "ends", False)]

        await until(lambda: bool(find()), f"the end of {call_id} in {self.heard}", WAIT_S)
        [end] = find()
        return end if type(end) is CallEnded else CallEnded(id=call_id, state="returned")

    def values(self, call_id: str) -> dict[int, bytes]:
        """What ranks answered, of answers that were told together."""
        values: dict[int, bytes] = {}
        for message, body in self.heard:
            if type(message) is CallResults and message.id == call_id:
                for answer in message.answers:
                    size = sum(answer.sizes)
                    values[answer.rank], body = body[:size], body[size:]
        return values


class Node(Party):
    """A node: what it is ordered, and what it says. Node 0 has no link."""

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
        """The worlds whose ranks it was told to fork."""
        return [order.world for order in self.find(ForkWorld)]


@dataclass
class Run:
    """A call that ranks were given: the test speaks for them."""

    call: str
    world: int
    order: RunCall
    body: bytes
    ranks: dict[int, Node]  # where each rank is

    def answer(self, rank: int, value: bytes = b"", **fields: Any) -> None:
        about = {"call": self.call, "rank": rank, "sizes": [len(value)], "at_s": time.time()}
        self.ranks[rank].say(CallAnswer(**{**about, **fields}), value)

    def fail(self, rank: int, text: str = "no", *, kind: str = "ValueError", at_s: float = 0.0):
        error = ErrorInfo(type=f"builtins.{kind}", message=text)
        self.answer(rank, b"pickled", state="raised", error=error, at_s=at_s or time.time())

    def lose(self, rank: int, *, given: str | None = None, answered: str = "", **fields: Any):
        """A rank's process is gone."""
        about = {"rank": rank, "attempt": self.world, "state": "killed", "signal": 9}
        outcome = Outcome(**{**about, "at_s": time.time(), **fields})
        given = self.call if given is None else given
        message = RankEnded(given=given, answered=answered, outcome=outcome)
        self.ranks[rank].say(message)

    def finish(self) -> None:
        """All ranks return."""
        for rank in self.ranks:
            self.answer(rank)


@dataclass
class CodeFolder:
    """A project's folder on a client's machine."""

    root: Path
    manifest: Manifest = EMPTY

    def write(self, **files: str) -> tuple[SyncCode, bytes]:
        """Change files: what a client says of it, against what it had before."""
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
