"""The nodes and worlds of a warm lead: who is here, what code each has, which ranks wait where.

Makes worlds when asked, keeps them, ends them. Which call runs on which world, and when, is
`agent.warm.lead`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from windlass import records
from windlass.agent.board import Board
from windlass.agent.failure import make_job_verdict
from windlass.agent.port import hold_port
from windlass.agent.warm.calls import Call
from windlass.agent.warm.projects import Projects
from windlass.agent.warm.worlds import Meeting, World, make_world_nodes
from windlass.bundle.manifest import EMPTY
from windlass.errors import WindlassError
from windlass.plan.plan import Plan
from windlass.plan.topology import make_nodes
from windlass.wire.status import FailureKind, Verdict

logger = logging.getLogger(__name__)

_STORE_S = 30.0
_KEPT_WORLDS = 200

SendBody = Callable[..., None]
Ship = Callable[[str, str], Awaitable[None]]  # a parcel's key and its file


class NotReady(Exception):
    """A call cannot start, and why; `node` is the one to blame, if one is."""

    def __init__(self, why: str, node: int | None = None) -> None:
        super().__init__(why)
        self.node = node


@dataclass(slots=True)
class Member:
    """One node that is here."""

    send: SendBody
    ship: Ship | None = None  # for large parcels, where it is on another machine
    host: str = ""
    address: str = ""
    digests: dict[str, str] = field(default_factory=dict)  # of the projects it has
    setup: str = ""  # digest of the set-up it has done
    setup_error: str = ""


class Crews:
    """Nodes by index, worlds by number."""

    def __init__(self, plan: Plan, board: Board, *, address: str = "") -> None:
        self.plan = plan
        self._first_nodes = plan.nodes  # as the plan's file has them
        self._board = board
        self._address = plan.master_addr or address or "127.0.0.1"
        self._members: dict[int, Member] = {}
        self.worlds: dict[int, World] = {}
        self._slots: dict[str, World] = {}
        self._spare: World | None = None
        self._stores: dict[int, Meeting] = {}
        self._ready_store: Meeting | None = None  # opened ahead, for the next world that wants one
        self._next = 0
        self._changed = asyncio.Event()
        self._sync_errors: dict[int, str] = {}
        self.setup: dict[str, Any] = make_setup({}, list(plan.work.steps))  # type: ignore[union-attr]
        self.projects: Projects | None = None  # node 0's own
        self.keeps_logs = False  # of other nodes, where they do not share a folder
        self.stopped: Verdict | None = None
        self.must_hurry = False

    # -- nodes ---------------------------------------------------------------------------------

    def knows(self, index: int) -> bool:
        return 0 <= index < len(self.plan.nodes)

    def is_here(self, index: int) -> bool:
        return index in self._members

    def missing(self, indexes: list[int]) -> list[int]:
        return [index for index in indexes if index not in self._members]

    def join(self, index: int, send: SendBody, *, ship: Ship | None = None, **about: Any) -> None:
        """A node is there."""
        host, address = str(about.get("host", "")), str(about.get("address", ""))
        self._members[index] = Member(send=send, ship=ship, host=host, address=address)
        known = {key: about[key] for key in ("pid", "python", "host") if key in about}
        self._board.set_node(index, state="joined", **known)
        self._changed.set()

    def prepare(self, index: int) -> None:
        """Of no matter here: code comes with calls."""

    def lose(self, index: int, why: str = "") -> None:
        """A node is gone, and with it its ranks of every world."""
        if self._members.pop(index, None) is None:
            return
        logger.warning("node %s is gone%s", index, f": {why}" if why else "")
        if self.knows(index):
            self._board.set_node(index, state="lost")
        for world in self.worlds.values():
            if index in world.nodes:
                world.is_alive = False
                world.cleared.add(index)
        self._changed.set()

    def scale(self, num_nodes: int) -> None:
        """So many nodes from now on; those beyond are told that they are no longer needed."""
        self.plan = self.plan.with_nodes(
            make_nodes(num_nodes, self.plan.nodes[0].num_ranks, job_name=self.plan.name)
        )
        self._board.resize(self.plan)
        for index in [i for i in self._members if i >= num_nodes and not self.keeps_logs]:
            self._members[index].send({"type": "end"})  # pods are ended by whoever made them
        self._changed.set()

    def end(self, kind: FailureKind, message: str, *, now: bool = False) -> None:
        """Somebody wants all of it to end."""
        if self.stopped is None:
            self.stopped = make_job_verdict(self.plan, kind, message, at_s=time.time())
        self.must_hurry |= now
        self._changed.set()

    def receive(self, index: int, message: dict[str, Any], _body: bytes = b"") -> None:
        """Something a node says of itself."""
        kind = message["type"]
        if kind == "cleared" and message["world"] in self.worlds:
            self.worlds[message["world"]].cleared.add(index)
        elif kind == "store" and message["number"] in self._stores:
            self._take_store(self._stores[message["number"]], message["port"])
        elif kind == "store_gone" and self._ready_store is not None:
            if self._ready_store.number == message["number"]:
                self._ready_store = None
        elif kind == "synced" and message.get("error"):
            self._sync_errors[index] = message["error"]
            if index in self._members:
                self._members[index].digests.pop(message["project"], None)
        elif kind == "set_up" and index in self._members:
            member = self._members[index]
            member.setup, member.setup_error = message["digest"], message["error"]
        elif kind == "ready":
            self._board.set_node(index, state="ready")
        elif kind == "trouble":
            self._board.add_condition("warning", message["reason"], message["message"])
        self._changed.set()

    def has_instance(self, slot: str, instance: str) -> bool:
        """Whether the object of a kept world is alive."""
        world = self._slots.get(slot)
        return world is not None and world.is_alive and world.instance == instance

    # -- finding and making worlds -------------------------------------------------------------

    def find_world(self, call: Call) -> World | None:
        """A world that can take this call at once."""
        asked = call.asked
        world = self._slots.get(asked["slot"]) if asked["slot"] else self._spare
        if world is None or not world.is_alive or world.shape != asked["shape"]:
            return None
        if asked["slot"] and (world.instance != asked["instance"] or call.constructor is not None):
            return None
        if not all(self._is_up_to_date(index, asked) for index in world.nodes):
            return None
        if world.meeting is None and not self._meet_at_once(world, wants_store=asked["store"]):
            return None
        if world is self._spare:
            self._spare = None
        return world

    def _is_up_to_date(self, index: int, asked: Any) -> bool:
        member = self._members.get(index)
        if member is None or member.setup != self.setup["digest"]:
            return False
        project = asked["project"]
        return not project["digest"] or member.digests.get(project["key"]) == project["digest"]

    async def prepare_world(self, call: Call) -> World | None:
        """Bring nodes, code and ranks to where the call can start; None when it was ended meanwhile."""
        if call.asked["world"]["nodes"] > len(self.plan.nodes):  # of which an earlier lead knew
            self.scale(call.asked["world"]["nodes"])
        world = self.plan.with_nodes(make_world_nodes(self.plan, call.asked["world"]))
        indexes = [node.index for node in world.nodes]
        await self._wait_for_nodes(call, indexes)
        if call.stop is not None:
            return None
        self._sync(call, indexes)
        await self._set_up(call, indexes)
        if call.asked["store"]:
            await self._await_store(call.asked["preload"])
        found = self.find_world(call)
        if found is not None or call.stop is not None:
            return found
        made = await self._make_world(call, world)
        self._meet_at_once(made, wants_store=call.asked["store"])
        return made

    async def _wait_for_nodes(self, call: Call, indexes: list[int]) -> None:
        missing = self.missing(indexes)
        if not missing:
            return
        who = ", ".join(f"node {index}" for index in missing)
        call.tell({"type": "waiting", "what": f"waiting for {who}"})
        limit_s = call.asked["launch_timeout_s"]
        is_over = lambda: not self.missing(indexes) or call.stop is not None  # noqa: E731
        if not await self.until(is_over, timeout_s=limit_s):
            late = self.missing(indexes)
            who = ", ".join(f"node {index}" for index in late)
            raise NotReady(f"{who} did not join within {limit_s:g} s (launch_timeout)")

    def _sync(self, call: Call, indexes: list[int]) -> None:
        """Send each node the code it lacks; what follows on its link finds it there."""
        project = call.asked["project"]
        key, digest = project["key"], project["digest"]
        if not digest or self.projects is None:
            return
        self._sync_errors.clear()
        if self.projects.digest(key) != digest:
            if call.sync is None:
                raise NotReady("the project's code is not here; call again")
            try:
                self.projects.apply(*call.sync)
            except WindlassError as error:
                raise NotReady(f"the code could not be unpacked: {error.message}", 0) from error
        self._members[0].digests[key] = digest
        whole: bytes | None = None
        for index in indexes:
            member = self._members[index]
            has = member.digests.get(key, EMPTY.digest)
            if index == 0 or has == digest:
                continue
            if call.sync is not None and call.sync[0]["base"] == has:
                member.send(*call.sync)
            else:
                whole = whole or self.projects.pack(key)
                about = {"type": "sync", "project": key, "base": EMPTY.digest, "digest": digest}
                member.send(about, whole)
            member.digests[key] = digest

    async def _set_up(self, call: Call, indexes: list[int]) -> None:
        wanted = self.setup["digest"]
        todo = [i for i in indexes if i in self._members and self._members[i].setup != wanted]
        if not todo:
            return
        self._drop_worlds()  # their fork servers start anew
        call.tell({"type": "waiting", "what": "setting up nodes"})
        for index in todo:
            self._members[index].setup_error = ""
            self._members[index].send({**self.setup, "cwd": call.asked["project"]["cwd"]})

        def is_over() -> bool:
            pending = [i for i in todo if i in self._members and self._members[i].setup != wanted]
            return not pending or call.stop is not None

        await self.until(is_over, timeout_s=None)
        for index in todo:
            member = self._members.get(index)
            if member is not None and member.setup_error:
                error, member.setup, member.setup_error = member.setup_error, "", ""
                raise NotReady(f"node {index}: {error}", index)

    def _drop_worlds(self) -> None:
        for world in self.worlds.values():
            world.is_alive = False
        self._spare = self._ready_store = None
        self._stores.clear()

    async def _make_world(self, call: Call, plan: Plan) -> World:
        asked = call.asked
        if self._spare is not None:
            self.dismiss(self._spare, now=True)
            self._spare = None
        await self._clear_slot(asked["slot"])
        world = World(
            self._count(),
            plan,
            asked["shape"],
            slot=asked["slot"],
            instance=asked["instance"],
            version=asked.get("version", ""),
        )
        self.worlds[world.number] = world
        self._muster(world, asked)
        if world.slot:
            self._slots[world.slot] = world
            if call.constructor is not None:
                header, body = call.constructor
                self.send(world, {**header, "world": world.number}, body)
        return world

    async def _clear_slot(self, slot: str) -> None:
        old = self._slots.pop(slot, None) if slot else None
        if old is not None:
            self.dismiss(old, now=False)
            await self.until(lambda: old.is_cleared, timeout_s=self.plan.grace_s + 5.0)
            self.worlds.pop(old.number, None)

    # -- where ranks meet ----------------------------------------------------------------------

    def _meet_at_once(self, world: World, *, wants_store: bool) -> bool:
        """Give a world its meeting; False when its store is not open yet."""
        if wants_store:
            store = self._ready_store
            if store is None or store.port is None:
                return False
            self._ready_store, world.meeting = None, store
            return True
        world.meeting = Meeting(self._count())
        self._hold(world.meeting)
        return True

    def open_store(self, preload: list[str]) -> None:
        """Have a store opened for the next world that wants one; torch, which it is of, is in `preload`."""
        if self._ready_store is not None or 0 not in self._members:
            return
        meeting = Meeting(self._count())
        self._ready_store = self._stores[meeting.number] = meeting
        order = {"type": "open_store", "number": meeting.number, "address": self._address}
        self._members[0].send({**order, "port": self.plan.master_port, "preload": preload})

    async def _await_store(self, preload: list[str]) -> None:
        self.open_store(preload)
        store = self._ready_store
        if store is not None:
            await self.until(lambda: store.port is not None, timeout_s=_STORE_S)
            if store.port is None:
                self._take_store(store, 0)

    def _take_store(self, meeting: Meeting, port: int) -> None:
        """A store is open; where there can be none, rank 0 opens one at a port that is held for it."""
        if port:
            meeting.port = port
        else:
            self._hold(meeting)

    def _hold(self, meeting: Meeting) -> None:
        meeting.held = hold_port(self.plan.master_port)
        meeting.port = meeting.held.number

    def _close_meeting(self, world: World) -> None:
        meeting, world.meeting = world.meeting, None
        if meeting is None:
            return
        self._stores.pop(meeting.number, None)
        if meeting.held is not None:
            meeting.held.release()
        elif 0 in self._members:
            self._members[0].send({"type": "close_store", "number": meeting.number})

    def meet(self, world: World) -> dict[str, str]:
        """What the ranks of a world are told of their meeting."""
        if world.meeting is None:
            return {}
        first = self._members.get(world.nodes[0])
        own = first.address if first is not None else ""
        return world.meeting.render(
            self._address if world.meeting.has_store else own or self._address
        )

    def _count(self) -> int:
        self._next += 1
        return self._next - 1

    def _muster(self, world: World, asked: Any) -> None:
        project = asked["project"]
        order = {
            "type": "muster",
            "world": world.number,
            "nodes": records.to_json(world.plan.nodes),
            "preload": asked["preload"],
            "env": asked["env"],
            "about": {
                "keep": bool(world.slot),
                "cwd": project["cwd"],
                "root": project["root"],
                "paths": project["paths"],
            },
        }
        self.send(world, order)
        if world.plan.nodes != self._first_nodes:
            self._board.keep_world(world.number, world.plan)

    async def make_spare(self, call: Call) -> None:
        """Have the ranks of the next call forked before it comes, if it is like this one."""
        plan = self.plan.with_nodes(make_world_nodes(self.plan, call.asked["world"]))
        if self._spare is None and not self.missing([node.index for node in plan.nodes]):
            self._spare = await self._make_world(call, plan)

    # -- orders --------------------------------------------------------------------------------

    def send(self, world: World, header: dict[str, Any], body: bytes = b"") -> None:
        for index in world.nodes:
            member = self._members.get(index)
            if member is not None:
                member.send(header, body)

    async def send_file(self, world: World, header: dict[str, Any], path: str) -> None:
        """A call whose parcel lies in a file: to other machines it goes ahead by parts."""
        members = [self._members[index] for index in world.nodes if index in self._members]
        far = [member for member in members if member.ship is not None]
        for member in members:
            if member.ship is None:
                member.send({**header, "file": path})
        await asyncio.gather(*(self._ship(member, header, path) for member in far))

    @staticmethod
    async def _ship(member: Member, header: dict[str, Any], path: str) -> None:
        with contextlib.suppress(OSError):  # then its link breaks, which is heard of
            if member.ship is not None:
                await member.ship(path, path)
                member.send({**header, "parcel": path})

    def dismiss(self, world: World, *, now: bool) -> None:
        """End a world's ranks."""
        world.is_alive = False
        self._close_meeting(world)
        world.cleared.update(self.missing(world.nodes))
        self.send(world, {"type": "dismiss", "world": world.number, "now": now})

    async def dismiss_all(self, *, now: bool) -> None:
        live = list(self.worlds.values())
        for world in live:
            self.dismiss(world, now=now)
        limit_s = self.plan.grace_s + 5.0
        await self.until(lambda: all(world.is_cleared for world in live), timeout_s=limit_s)

    # -- small things --------------------------------------------------------------------------

    def keep_log(self, number: int, rank: int, lines: bytes) -> None:
        """Lines of a rank on another machine, where all readers find them."""
        folder = self._board.folder
        folder.attempt(number).mkdir(exist_ok=True)
        with folder.log(number, rank).open("ab") as file:
            file.write(lines)

    def prune_logs(self, number: int) -> None:
        shutil.rmtree(self._board.folder.attempt(number - _KEPT_WORLDS), ignore_errors=True)

    async def until(self, is_so: Callable[[], bool], *, timeout_s: float | None) -> bool:
        """Wait for a condition; whether it came true in time."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while not is_so():
            self._changed.clear()
            left_s = None if deadline is None else deadline - loop.time()
            if left_s is not None and left_s <= 0:
                return False
            try:
                await asyncio.wait_for(self._changed.wait(), left_s)
            except asyncio.TimeoutError:
                return is_so()
        return True


def make_setup(env: dict[str, str], steps: list[Any]) -> dict[str, Any]:
    """The order to set up nodes; nothing to do has an empty digest."""
    import hashlib
    import json

    text = json.dumps([env, steps], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest() if env or steps else ""
    return {"type": "setup", "env": env, "steps": steps, "digest": digest}
