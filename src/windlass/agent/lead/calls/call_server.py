"""Server for the clients of a compute: turns their messages into calls and answers their requests.

It keeps what a client sends before a call on the same connection: parts of its payload, changed code, and
the constructor of an object. `agent.lead.calls.call_lead` decides when and where a call runs.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

from windlass import names
from windlass.agent.agent_context import AgentContext
from windlass.agent.lead.calls.call_lead import CallLead
from windlass.agent.lead.calls.call_state import (
    Call,
    CallListener,
    make_call_status,
    read_call_logs,
)
from windlass.agent.lead.calls.ready_nodes import make_setup
from windlass.agent.lead.calls.world_pool import shape_of
from windlass.agent.link.agent_link import Link
from windlass.agent.link.payload_parts import PartStore, send_parts
from windlass.agent.projects import Projects
from windlass.bundle.manifest import EMPTY
from windlass.errors import ProtocolError
from windlass.wire.message import Handlers, Message
from windlass.wire.messages.calls import (
    CLIENT_TO_COMPUTE_LEAD,
    AskCall,
    AskCallLogs,
    AskCallStatus,
    AskInfo,
    AttendCall,
    CallAccepted,
    CallForgotten,
    CallListed,
    CallLogsReply,
    CallProfile,
    CallStatusReply,
    CallUnknown,
    ComputeInfo,
    ConfigureCompute,
    EndCall,
    LeadEnding,
    ProjectPlace,
    RepeatCall,
    ScaleNodes,
    SetProfile,
)
from windlass.wire.messages.computes import COMPUTE_NODE_TO_LEAD, MakeObject, PayloadPart, SyncCode
from windlass.wire.messages.jobs import Acknowledged, JoinLead

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Peer:
    """Data that a peer sent ahead of the calls that use it."""

    parts: PartStore
    sync: tuple[SyncCode, bytes] | None = None
    constructor: tuple[MakeObject, bytes] | None = None
    # common settings of its calls, and the shape of worlds that can run them
    profiles: dict[str, tuple[CallProfile, str]] = field(default_factory=dict)


class CallServer:
    """Server for a compute's clients. `projects` and `spill`, a folder for large payloads, are on node 0."""

    client_reads = CLIENT_TO_COMPUTE_LEAD
    node_reads = COMPUTE_NODE_TO_LEAD

    def __init__(
        self, context: AgentContext, lead: CallLead, projects: Projects, spill: Path
    ) -> None:
        self._context = context
        self._lead = lead
        self._projects = projects
        self._spill = spill
        self._peers: dict[Link, _Peer] = {}
        self._born = os.urandom(8).hex()  # identifies this lead among those of the compute
        self._handlers: Handlers = {
            AskCall: self._take_call,
            PayloadPart: self.keep_part,
            SyncCode: self._take_sync,
            MakeObject: self._take_constructor,
            SetProfile: self._take_profile,
            AttendCall: self._take_attend,
            EndCall: self._end_call,
            AskCallStatus: self._send_status,
            AskCallLogs: self._send_logs,
            AskInfo: self._send_info,
            ScaleNodes: self._scale,
            ConfigureCompute: self._configure,
        }

    def take(self, link: Link, message: Message, body: bytes) -> None:
        """Process one message from a client."""
        self._handlers[type(message)](link, message, body)

    def leave(self, link: Link) -> None:
        """Remove a disconnected peer. Its calls continue, except streams without other listeners."""
        peer = self._peers.pop(link, None)
        if peer is not None:
            peer.parts.drop()
        for call in self._lead.history.drop_listener(link):
            if call.profile.stream and not call.is_final:
                self._lead.abandon(call)

    # -- nodes ---------------------------------------------------------------------------------

    def join(self, link: Link, index: int, about: JoinLead) -> None:
        """Add a node. Large payloads go to it in parts if it is on another machine."""

        async def ship(key: str, path: str) -> None:
            await send_parts(link, key, path)

        self._lead.join(index, link.send, about, ship=ship if self._context.is_pod else None)

    def keep_part(self, link: Link, message: Message, body: bytes) -> bool:
        """Keep a part of a payload. Return False for any other message."""
        if not isinstance(message, PayloadPart):
            return False
        self._peer(link).parts.take(message, body)
        return True

    def with_file(self, link: Link, message: Message) -> Message:
        """Attach the payload file that arrived before a node's message, and return the message."""
        return self._peer(link).parts.with_file(message)

    def _peer(self, link: Link) -> _Peer:
        peer = self._peers.get(link)
        if peer is None:
            peer = self._peers[link] = _Peer(PartStore(self._spill, is_far=self._context.is_pod))
        return peer

    # -- calls ---------------------------------------------------------------------------------

    def _take_sync(self, link: Link, message: SyncCode, body: bytes) -> None:
        """Keep changed code for the next call, which is rejected if the code does not match."""
        if message.base in (self._expected(message.project), EMPTY.digest):
            self._peer(link).sync = (message, body)

    def _take_constructor(self, link: Link, message: MakeObject, body: bytes) -> None:
        self._peer(link).constructor = (message, body)

    def _take_profile(self, link: Link, message: SetProfile, _body: bytes) -> None:
        """Keep the common settings of later calls."""
        profile = message.profile
        if profile.project.key and profile.project.digest:
            profile = profile.replaced(project=self._place(profile.project))
        self._peer(link).profiles[message.key] = (profile, shape_of(profile))

    def _expected(self, key: str) -> str:
        """Return the digest that a project has once the changes of all queued calls are applied."""
        for call in self._lead.queue.newest_first():
            if call.sync is not None and call.sync[0].project == key:
                return call.sync[0].digest
        return self._projects.digest(key)

    def _take_call(self, link: Link, message: AskCall, body: bytes) -> None:
        peer, call_id = self._peer(link), message.id
        sync, peer.sync = peer.sync, None
        constructor, peer.constructor = peer.constructor, None
        if call_id in self._lead.history:  # repeated after a broken connection
            self._attend(link, call_id)
            return
        if self._lead.history.has_forgotten(call_id):
            link.send(CallForgotten(id=call_id))
            return
        if self._lead.stop.is_requested:  # the next lead has to run it
            link.send(LeadEnding(id=call_id))
            return
        if message.profile not in peer.profiles:
            raise ProtocolError(f"the call {call_id!r:.60} refers to a profile that was not sent")
        profile, shape = peer.profiles[message.profile]
        key, here = profile.project.key, self._expected(profile.project.key)
        if profile.project.digest == "as is":  # a callable by name runs with the current code
            profile = profile.replaced(project=profile.project.replaced(digest=here))
        digest = profile.project.digest
        if sync is not None and not (
            sync[0].project == key and sync[0].base in (here, EMPTY.digest)
        ):
            sync = None  # for another project, or the project has changed since
        if digest and digest != (here if sync is None else sync[0].digest):
            link.send(RepeatCall(id=call_id, has=here))
            return
        if profile.slot and not self._knows_object(profile) and constructor is None:
            peer.sync = sync  # the repeated call does not send it again
            link.send(RepeatCall(id=call_id, make=True, has=digest))
            return
        file = self._find_file(peer, message)
        call = Call(
            call_id, profile, message.sizes, body, shape, file, sync=sync, constructor=constructor
        )
        if not profile.detach:
            call.listeners.append(self._make_listener(link))
        else:
            link.send(CallAccepted(id=call_id))
        self._lead.ask(call)

    def _find_file(self, peer: _Peer, message: AskCall) -> str:
        """Return the file of a large payload. Paths from other machines are ignored."""
        if message.payload:
            return peer.parts.claim(message.payload)
        return "" if self._context.is_pod else message.file

    def _knows_object(self, profile: CallProfile) -> bool:
        return not profile.instance or self._lead.pool.has_instance(profile.slot, profile.instance)

    def _place(self, project: ProjectPlace) -> ProjectPlace:
        """Replace the paths of a transferred project by those on the nodes."""
        root = f"{self._context.folder.code}/{project.key}"

        def place(path: str) -> str:
            return f"{root}/{path}".rstrip("/.") if path not in ("", ".") else root

        paths = [place(path) for path in project.paths]
        return project.replaced(root=root, cwd=place(project.cwd), paths=paths)

    def _take_attend(self, link: Link, message: AttendCall, _body: bytes) -> None:
        self._attend(link, message.id, since=message.since)

    def _attend(self, link: Link, call_id: str, *, since: int = 0) -> None:
        call = self._lead.history.get(call_id)
        if call is None:
            self._deny(link, call_id, since)
            return
        link.send(CallAccepted(id=call_id))
        listener = self._make_listener(link)
        for item in call.items:
            if not item.file or os.path.exists(item.file):
                call.send_answer(listener, item)
        for rank in sorted(call.answers):
            call.send_answer(listener, call.answers[rank])
        if call.is_final:
            call.send_end(listener)
        else:
            call.listeners.append(listener)

    def _deny(self, link: Link, call_id: str, since: int = 0) -> None:
        """Report a call as no longer kept, or as unknown only if it certainly never arrived."""
        was_here = self._lead.history.has_forgotten(call_id, since=since)
        link.send(CallForgotten(id=call_id) if was_here else CallUnknown(id=call_id))

    def _end_call(self, link: Link, message: EndCall, _body: bytes) -> None:
        call = self._lead.history.get(message.id)
        if call is not None:
            why = message.why or "cancelled by a client"
            signum = signal.SIGINT if message.interrupt else signal.SIGTERM
            self._lead.cancel(call, why, signum=signum)
        link.send(Acknowledged(id=message.id))

    def _send_status(self, link: Link, message: AskCallStatus, _body: bytes) -> None:
        call = self._lead.history.get(message.id)
        if call is None:
            self._deny(link, message.id)
            return
        ahead = self._lead.history.count_ahead(call)
        status = make_call_status(call, self._lead.plan, ahead)
        link.send(CallStatusReply(id=call.id, status=status))

    def _send_logs(self, link: Link, message: AskCallLogs, _body: bytes) -> None:
        call = self._lead.history.get(message.id)
        if call is None:
            self._deny(link, message.id)
            return
        files, body = read_call_logs(call, self._context.folder, message.seen)
        link.send(CallLogsReply(id=call.id, files=files), body)

    def _make_listener(self, link: Link) -> CallListener:
        return CallListener(link, is_remote=self._context.is_pod)

    # -- the compute ---------------------------------------------------------------------------

    def _scale(self, link: Link, message: ScaleNodes, _body: bytes) -> None:
        before = len(self._lead.plan.nodes)
        self._lead.scale(max(before, message.nodes) if message.at_least else message.nodes)
        link.send(self._make_info().replaced(before=before))

    def _configure(self, link: Link, message: ConfigureCompute, _body: bytes) -> None:
        known = self._lead.setup
        if any(part is not None for part in (message.env, message.steps, message.hidden)):
            hidden = {**known.hidden, **(message.hidden or {})}
            # nodes already have the values that this agent was started with
            new = {k: v for k, v in hidden.items() if os.environ.get(k) != v}
            env = known.env if message.env is None else message.env
            steps = known.steps if message.steps is None else message.steps
            self._lead.setup = make_setup(env, steps, new)
        if message.has_field("ttl_s"):
            self._lead.inactivity.set(message.ttl_s)
        self._lead.record.update(message.record or {})
        link.send(self._make_info())

    def _send_info(self, link: Link, _message: AskInfo, _body: bytes) -> None:
        link.send(self._make_info())

    def _make_info(self) -> ComputeInfo:
        lead = self._lead
        return ComputeInfo(
            job_id=self._context.plan.job_id,
            spill=str(self._spill),
            nodes=len(lead.plan.nodes),
            here=[node.index for node in lead.plan.nodes if node.index in lead.nodes],
            projects={key: self._expected(key) for key in self._projects.digests()},
            calls=[
                CallListed(id=call.id, name=call.profile.name, state=call.state)
                for call in lead.history.recent()[-20:]
            ],
            num_calls=lead.history.num_calls,
            idle_s=lead.queue.idle_s,
            ttl_s=lead.inactivity.ttl_s,
            setup=lead.setup.digest,
            env=lead.setup.env,
            steps=lead.setup.steps,
            record=lead.record,
            version=names.VERSION,
            python=f"{sys.version_info[0]}.{sys.version_info[1]}",
            born=self._born,
        )
