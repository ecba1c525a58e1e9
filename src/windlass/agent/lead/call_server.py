"""What clients may ask of warm nodes, and how they are answered.

Frames in, calls out. Keeps what a client sent ahead of a call on the same link: parts of its payload, changed
code, the making of an object. When and where a call runs is `agent.lead.call_lead`.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from dataclasses import dataclass, field
from typing import Any

from windlass import names, records
from windlass.agent.agent_context import AgentContext
from windlass.agent.lead.call_lead import CallLead
from windlass.agent.lead.call_state import Call, CallListener
from windlass.agent.lead.call_status import make_call_status, read_call_logs
from windlass.agent.lead.node_table import make_setup
from windlass.agent.lead.world_shape import shape_of
from windlass.agent.link.agent_link import Link
from windlass.agent.link.payload_parts import PartStore, send_parts
from windlass.agent.node.call_node import CallNode
from windlass.bundle.manifest import EMPTY
from windlass.errors import ProtocolError
from windlass.wire.frames import Frame, Header

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Visitor:
    """One client's link, and what it has sent ahead."""

    parts: PartStore
    sync: tuple[dict[str, Any], bytes] | None = None
    constructor: tuple[dict[str, Any], bytes] | None = None
    profiles: dict[str, dict[str, Any]] = field(
        default_factory=dict
    )  # what its calls have in common


class CallServer:
    """Takes what clients ask."""

    def __init__(self, context: AgentContext, lead: CallLead, node: CallNode) -> None:
        self._context = context
        self._lead = lead
        self._node = node
        self._visitors: dict[Link, _Visitor] = {}
        self._born = os.urandom(8).hex()  # tells one lead of a compute from the next
        self._promised: dict[str, str] = {}  # digest of each project once all calls have started

    def take(self, link: Link, frame: Frame) -> None:
        """One thing a client says."""
        try:
            self._take(link, self._visitor(link), frame)
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"a client said something malformed: {error!r}") from error

    def _take(self, link: Link, visitor: _Visitor, frame: Frame) -> None:
        header, kind = dict(frame.header), frame.type
        if kind == "call":
            self._take_call(link, visitor, header, frame.body)
        elif kind == names.PART_FRAME:
            visitor.parts.take(frame)
        elif kind == "sync":
            self._take_sync(visitor, header, frame.body)
        elif kind == "make":
            visitor.constructor = (header, frame.body)
        elif kind == "profile":
            visitor.profiles[header["key"]] = self._read_profile(header["profile"])
        elif kind == "attend":
            self._attend(link, header["id"], since=int(header.get("since", 0)))
        elif kind == "end_call":
            if header["id"] in self._lead.history:
                why = str(header.get("why") or "cancelled by a client")
                signum = signal.SIGINT if header.get("interrupt") else signal.SIGTERM
                self._lead.cancel(self._lead.history[header["id"]], why, signum=signum)
            link.send({"type": "ok", "id": header["id"]})
        elif kind in ("call_status", "call_logs"):
            self._tell_of_call(link, kind, header)
        elif kind == "info":
            link.send(self._render_info())
        elif kind == "scale":
            before, asked = len(self._lead.plan.nodes), int(header["nodes"])
            self._lead.scale(max(before, asked) if header.get("at_least") else asked)
            link.send({**self._render_info(), "before": before})
        elif kind == "configure":
            self._configure(header)
            link.send(self._render_info())

    def leave(self, link: Link) -> None:
        """A client hung up: its calls go on."""
        visitor = self._visitors.pop(link, None)
        if visitor is not None:
            visitor.parts.drop()
        for call in self._lead.history.drop_listener(link):
            if call.asked["stream"] and not call.is_final:
                self._lead.abandon(call)

    # -- nodes ---------------------------------------------------------------------------------

    def join(self, link: Link, index: int, about: Header) -> None:
        """A node has come; large payloads go to it by parts, where it is on another machine."""

        async def ship(key: str, path: str) -> None:
            await send_parts(link, key, path)

        known = {key: about[key] for key in ("pid", "python", "host", "address") if key in about}
        self._lead.join(index, link.send, ship=ship if self._context.is_pod else None, **known)

    def take_part(self, link: Link, frame: Frame) -> bool:
        """Keep a part of a payload; whether it was one."""
        if frame.type != names.PART_FRAME:
            return False
        self._visitor(link).parts.take(frame)
        return True

    def with_file(self, link: Link, frame: Frame) -> dict[str, Any]:
        """What a node says, with the file of the payload that came ahead of it."""
        return self._visitor(link).parts.with_file(frame)

    def _visitor(self, link: Link) -> _Visitor:
        visitor = self._visitors.get(link)
        if visitor is None:
            visitor = self._visitors[link] = _Visitor(
                PartStore(self._node.spill, is_far=self._context.is_pod)
            )
        return visitor

    # -- calls ---------------------------------------------------------------------------------

    def _take_sync(self, visitor: _Visitor, header: dict[str, Any], body: bytes) -> None:
        """Keep it for the call that follows; one that does not fit what is here is told with that call."""
        if header["base"] in (self._expected(header["project"]), EMPTY.digest):
            visitor.sync = (header, body)

    def _expected(self, key: str) -> str:
        return self._promised.get(key) or self._node.projects.digest(key)

    def _take_call(
        self, link: Link, visitor: _Visitor, header: dict[str, Any], body: bytes
    ) -> None:
        sync, visitor.sync = visitor.sync, None
        constructor, visitor.constructor = visitor.constructor, None
        call_id = str(header["id"])
        if call_id in self._lead.history:  # said twice, over a line that broke
            self._attend(link, call_id)
            return
        if self._lead.history.has_forgotten(call_id):
            link.send({"type": "forgotten", "id": call_id})
            return
        if self._lead.stopped is not None:  # it is for the nodes that come after these
            link.send({"type": "leaving", "id": call_id})
            return
        asked = {**visitor.profiles[header["profile"]], **header}
        project = asked["project"]
        if project["digest"] == "as is":  # a callable by name: whatever code is here
            project = asked["project"] = {**project, "digest": self._expected(project["key"])}
        key, digest = project["key"], project["digest"]
        if sync is not None and sync[0]["project"] == key:
            self._promised[key] = sync[0]["digest"]
        if digest and self._expected(key) != digest:
            link.send({"type": "again", "id": call_id, "has": self._expected(key)})
            return
        if asked["slot"] and not self._knows_object(asked) and constructor is None:
            visitor.sync = sync  # it was promised, and the same call comes again without it
            link.send({"type": "again", "id": call_id, "make": True, "has": digest})
            return
        file = ""
        if header.get("payload"):
            file = visitor.parts.claim(str(header["payload"]))
        elif header.get("file") and not self._context.is_pod:
            file = str(header["file"])
        call = Call(call_id, asked, body, file=file, sync=sync, constructor=constructor)
        if not asked["detach"]:
            call.listeners.append(self._make_listener(link))
        else:
            link.send({"type": "accepted", "id": call_id})
        self._lead.ask(call)

    def _read_profile(self, profile: dict[str, Any]) -> dict[str, Any]:
        """What calls have in common, once for all of them."""
        if profile["project"]["key"] and profile["project"]["digest"]:
            profile["project"] = self._place(profile["project"])
        return {**profile, "shape": shape_of(profile)}

    def _knows_object(self, header: Header) -> bool:
        return not header["instance"] or self._lead.has_instance(header["slot"], header["instance"])

    def _place(self, project: Header) -> dict[str, Any]:
        """Paths of a project that travelled are the nodes' own."""
        root = f"{self._context.folder.code}/{project['key']}"

        def place(path: str) -> str:
            return f"{root}/{path}".rstrip("/.") if path not in ("", ".") else root

        return {
            **project,
            "root": root,
            "cwd": place(project["cwd"]),
            "paths": [place(path) for path in project["paths"]],
        }

    def _attend(self, link: Link, call_id: str, *, since: int = 0) -> None:
        call = self._lead.history.get(call_id)
        if call is None:
            self._deny(link, call_id, since)
            return
        link.send({"type": "accepted", "id": call_id})
        listener = self._make_listener(link)
        items = [item for item in call.items if not item.file or os.path.exists(item.file)]
        for answer in (*items, *(call.answers[rank] for rank in sorted(call.answers))):
            call.tell_answer(listener, answer)
        if call.is_final:
            call.tell_end(listener)
        else:
            call.listeners.append(listener)

    def _deny(self, link: Link, call_id: str, since: int) -> None:
        """Say that a call is not known any more; only where that is certain, that it never was."""
        was_here = self._lead.history.has_forgotten(call_id, since=since)
        link.send({"type": "forgotten" if was_here else "unknown", "id": call_id})

    def _tell_of_call(self, link: Link, kind: str, header: Header) -> None:
        call = self._lead.history.get(header["id"])
        if call is None:
            self._deny(link, header["id"], since=0)
        elif kind == "call_status":
            ahead = self._lead.history.count_ahead(call)
            status = records.to_json(make_call_status(call, self._lead.plan, ahead))
            link.send({"type": kind, "id": call.id, "status": status})
        else:
            files, body = read_call_logs(call, self._context.folder, header.get("seen", {}))
            link.send({"type": kind, "id": call.id, "files": files}, body)

    def _make_listener(self, link: Link) -> CallListener:
        return CallListener(link, is_remote=self._context.is_pod)

    # -- the compute ---------------------------------------------------------------------------

    def _configure(self, header: Header) -> None:
        if "env" in header or "steps" in header or "hidden" in header:
            asked = {**self._lead.setup, **header}
            hidden = {**self._lead.setup["hidden"], **asked["hidden"]}
            # every node has what this one was started with
            new = {k: v for k, v in hidden.items() if os.environ.get(k) != v}
            self._lead.setup = make_setup(dict(asked["env"]), list(asked["steps"]), new)
        if "ttl_s" in header:
            self._lead.inactivity.set(header["ttl_s"])
        self._lead.record.update(header.get("record", {}))

    def _render_info(self) -> dict[str, Any]:
        lead = self._lead
        return {
            "type": "info",
            "job_id": self._context.plan.job_id,
            "spill": str(self._node.spill),
            "nodes": len(lead.plan.nodes),
            "here": [node.index for node in lead.plan.nodes if lead.is_here(node.index)],
            "projects": {key: self._expected(key) for key in self._node.projects.digests()},
            "calls": [
                {"id": call.id, "name": call.asked["name"], "state": call.state}
                for call in lead.history.recent()[-20:]
            ],
            "num_calls": lead.history.num_calls,
            "idle_s": lead.queue.idle_s,
            "ttl_s": lead.inactivity.ttl_s,
            "setup": lead.setup["digest"],
            "env": lead.setup["env"],
            "steps": lead.setup["steps"],
            "record": lead.record,
            "version": names.VERSION,
            "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
            "born": self._born,
        }
