"""Both ends of a connection between pods, over real TLS on this machine.

One end is a lead with its server, the other a follower in its own process.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pod_programs import make_command
from tls_peers import JOB, settle, write_certificates

from windlass.agent.agent_context import AgentContext
from windlass.agent.inputs import Inputs
from windlass.agent.lead.jobs.job_lead import JobLead
from windlass.agent.lead.lead_server import LeadServer
from windlass.agent.lead.status_writer import StatusWriter
from windlass.agent.link import endpoints
from windlass.agent.link.agent_link import Link, beat
from windlass.agent.link.tcp import TlsPlace
from windlass.agent.silence_limits import DEFAULT_LIMITS, SilenceLimits
from windlass.engines.archives import local_archive
from windlass.plan.plan import Facts, Input, Plan, make_plan, render_plan
from windlass.spec.job_spec import JobSpec
from windlass.spec.work import Command
from windlass.wire import tls
from windlass.wire.file_sync import Piece
from windlass.wire.frames import Frame
from windlass.wire.job_folder import JobFolder, write_atomically
from windlass.wire.message import Message
from windlass.wire.messages.jobs import JoinLead


def make_job(*, inputs: tuple[Input, ...] = (), **spec: Any) -> Plan:
    """Return the plan of a job with a few nodes that are replaced when they are lost."""
    asked = {"nodes": 3, "grace_s": 0.5, "join_timeout_s": 20.0, "detach": True, **spec}
    work = asked.pop("work", Command(argv=("true",)))
    facts = Facts(environ={}, replaces_nodes=True)
    now_s = time.time()
    return make_plan(
        JobSpec(work=work, **asked), job_id=JOB, now_s=now_s, facts=facts, inputs=inputs
    )


@dataclass
class Peer:
    """One end of a link, which records the messages it receives and can send others."""

    link: Link
    heard: list[Frame] = field(default_factory=list)
    has_hung_up: bool = False
    reading: asyncio.Task[None] | None = None

    async def read(self, frames: Any) -> None:
        async for frame in frames:
            if frame.type != "heartbeat":
                self.heard.append(frame)
        self.has_hung_up = True

    def say(self, kind: str, body: bytes = b"", **fields: Any) -> None:
        self.link.send({"type": kind, **fields}, body)

    def kinds(self) -> list[str]:
        return [frame.type for frame in self.heard]

    def find(self, kind: str) -> dict[str, Any] | None:
        """Return the fields of the last message of that kind, or None."""
        return next((dict(f.header) for f in reversed(self.heard) if f.type == kind), None)

    def files(self) -> dict[str, bytes]:
        """Return the contents of each file, assembled from the pieces received."""
        found: dict[str, bytes] = {}
        for frame in self.heard:
            if frame.type == "piece":
                path, offset = frame.header["path"], frame.header["offset"]
                assert offset in (0, len(found.get(path, b"")))
                found[path] = found.get(path, b"")[:offset] + frame.body
        return found

    async def close(self) -> None:
        await self.link.close()
        if self.reading is not None:
            await asyncio.wait({self.reading}, timeout=20)


@dataclass
class Scene:
    """A lead and its server. The test plays node 0."""

    files: Path  # folder with the certificates
    plan: Plan
    folder: JobFolder
    status_writer: StatusWriter
    lead: JobLead
    lead_server: LeadServer
    port: int
    orders: list[Message] = field(default_factory=list)  # received by node 0
    peers: list[Peer] = field(default_factory=list)

    async def visit(self, node: int | None = None, **hello: Any) -> Peer:
        """Connect as a node or a client. A refused peer finds the refusal in `heard`."""
        cert = "client" if node is None else "node"
        context = tls.client_context(self.files, cert)
        place = TlsPlace(host="127.0.0.1", port=self.port, context=context)
        link = await endpoints.connect(
            place, role=cert, job_id=JOB, node=node, timeout_s=20.0, also=hello
        )
        peer = Peer(link)
        peer.reading = asyncio.ensure_future(peer.read(link.frames()))
        self.peers.append(peer)
        return peer

    async def join(self, node: int, **about: Any) -> Peer:
        """Connect as a node and introduce it as an agent does."""
        peer = await self.visit(node)
        peer.say("join", **{"pid": node, "python": "3.12.1", "memory": None, "has": {}, **about})
        return peer

    def state(self, node: int) -> str:
        return self.status_writer.status.nodes[node].state


def run_lead_server(
    tmp_path: Path,
    visit: Any,
    plan: Plan | None = None,
    *,
    is_ready: bool = True,
    limits: SilenceLimits = DEFAULT_LIMITS,
):
    """Start a lead server, run `visit(scene)` and return its result."""
    plan = plan or make_job()
    files = write_certificates(tmp_path / "tls")
    folder = JobFolder(tmp_path / "lead")
    folder.path.mkdir()

    async def run() -> Any:
        status_writer = StatusWriter(plan, folder)
        lead = JobLead(plan, status_writer, address="127.0.0.1")
        inputs = Inputs(plan, folder)
        place = TlsPlace(host="127.0.0.1", port=0, context=tls.server_context(files))
        agent_context = AgentContext(
            plan=plan,
            folder=folder,
            index=0,
            run_dir=tmp_path,
            place=place,
            is_pod=True,
            limits=limits,
        )
        lead_server = LeadServer(agent_context, lead, inputs)
        listener = await endpoints.serve(place, JOB, lead_server.take)
        scene = Scene(files, plan, folder, status_writer, lead, lead_server, listener.port)
        lead.join(
            0,
            lambda order, _body: scene.orders.append(order),
            JoinLead(pid=1, python="3.12.1", is_prepared=is_ready),
        )
        status_writer.write()  # written now, so it does not overwrite a file that a test puts there
        try:
            return await asyncio.wait_for(visit(scene), 60)
        finally:
            await asyncio.gather(*(peer.close() for peer in scene.peers))
            listener.close()
            status_writer.write()
            await settle()

    return asyncio.run(run())


@dataclass
class HandMadeLead:
    """Lead that a test scripts. It records what followers send."""

    beats: bool = True
    refuses: int = 0  # the number of first connections to refuse
    visits: list[Peer] = field(default_factory=list)
    hellos: list[Any] = field(default_factory=list)

    async def take(self, link: Link, hello: Any, frames: Any) -> None:
        self.hellos.append(hello)
        if self.refuses:
            from windlass.errors import ProtocolError

            self.refuses -= 1
            raise ProtocolError("node 1 is already connected")
        peer = Peer(link)
        self.visits.append(peer)
        heart = asyncio.ensure_future(beat(link)) if self.beats else None
        try:
            await peer.read(frames)
        finally:
            if heart is not None:
                heart.cancel()


@contextlib.contextmanager
def follower_process(
    tmp_path: Path,
    plan: Plan,
    port: int,
    limits: dict[str, float] | None = None,
    given_by: str = "",
    **constants: float,
):
    """Start one follower, node 1, that finds its lead at `port`."""
    folder = tmp_path / "follower"
    (folder / "run").mkdir(parents=True)
    (folder / "plan.json").write_text(render_plan(plan))
    about = {
        "folder": str(folder),
        "certificates": str(tmp_path / "tls"),
        "port": port,
        "archive": str(local_archive()),
        "constants": constants,
        "limits": limits or {},
        "given_by": given_by,
    }
    with (tmp_path / "follower.log").open("wb") as log:
        process = subprocess.Popen(make_command("follower", about), stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait(20)
        print((tmp_path / "follower.log").read_text())


def put(folder, path, data):
    """Write a file in a job's folder."""
    (folder.path / path).parent.mkdir(exist_ok=True)
    write_atomically(folder.path / path, data)


def send(peer, path, data, offset=0, total_bytes=None):
    """Send a piece of a file over a peer's link."""
    piece = Piece(path=path, offset=offset, body=data, total_bytes=total_bytes)
    peer.link.send(piece.message, piece.body)
