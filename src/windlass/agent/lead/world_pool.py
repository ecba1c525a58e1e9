"""The nodes and worlds of a warm lead: which are here, what code each has, which ranks wait where.

Makes worlds when asked, keeps them, ends them. Which call runs on which world, and when, is
`agent.lead.call_lead`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Iterable, Sequence
from dataclasses import replace

from windlass import names
from windlass.agent.lead.call_state import Call
from windlass.agent.lead.node_table import NodeEntry, NodeTable, make_setup
from windlass.agent.lead.not_ready import MustMake, NotReady, NotSetUp
from windlass.agent.lead.rendezvous import STORE_S
from windlass.agent.lead.status_writer import StatusWriter
from windlass.agent.lead.worlds import World, make_world_nodes
from windlass.agent.node.projects import Projects
from windlass.agent.silence_limits import SIGHT, Parting, SilenceLimits
from windlass.bundle.manifest import EMPTY
from windlass.errors import WindlassError
from windlass.plan.plan import Plan
from windlass.wire.message import Handlers, Message
from windlass.wire.messages.calls import CallProfile, CallSaid, CallWaiting
from windlass.wire.messages.computes import (
    CodeSynced,
    EndWorld,
    ForkWorld,
    NodeSetUp,
    RunCall,
    SharedStoreGone,
    SharedStoreOpened,
    SyncCode,
    WorldCleared,
)
from windlass.wire.messages.forkserver import CallRankSetup
from windlass.wire.messages.jobs import ImportsReady, NodeTrouble
from windlass.wire.messages.link import Heartbeat
from windlass.wire.states import NodeState

logger = logging.getLogger(__name__)


def _name_nodes(indexes: Iterable[int]) -> str:
    return ", ".join(f"node {index}" for index in sorted(indexes))


class WorldPool(NodeTable):
    """Nodes by index, worlds by number."""

    def __init__(
        self,
        plan: Plan,
        status_writer: StatusWriter,
        *,
        address: str = "",
        sight: SilenceLimits = SIGHT,
    ) -> None:
        super().__init__(plan, status_writer, address=address, sight=sight)
        self.worlds: dict[int, World] = {}
        self._slots: dict[str, World] = {}
        self._spare: World | None = None
        self.setup = make_setup({}, list(plan.work.steps))  # type: ignore[union-attr]
        self.projects: Projects | None = None  # node 0's own
        self._given_up: set[int] = set()  # nodes that a call went on without
        self._handlers: Handlers = {
            WorldCleared: self._take_cleared,
            SharedStoreOpened: self.hear_of_store,
            SharedStoreGone: self.hear_of_lost_store,
            CodeSynced: self._take_synced,
            NodeSetUp: self._take_set_up,
            ImportsReady: lambda index, *_: status_writer.set_node(index, state=NodeState.READY),
            NodeTrouble: self._take_trouble,
            Heartbeat: lambda *_: None,
        }

    def lose(self, index: int, why: str = "", *, parting: Parting = Parting.CLOSED) -> None:
        """A node is gone, and with it its ranks of every world."""
        worlds = [world for world in self.worlds.values() if index in world.nodes]
        super().lose(
            index, why, parting=parting if worlds or index in self._unseen else Parting.CLOSED
        )
        for world in worlds:
            world.is_alive = False
            world.cleared.add(index)
            if world.is_dismissed and parting is Parting.CUT:  # its ranks have less time now
                self.dismiss(world, now=False)

    def receive(self, index: int, message: Message, body: bytes = b"") -> None:
        """Something a node says."""
        self._handlers[type(message)](index, message, body)
        self._changed.set()

    def _take_cleared(self, index: int, message: WorldCleared, _body: bytes) -> None:
        if message.world in self.worlds:
            self.worlds[message.world].cleared.add(index)

    def _take_synced(self, index: int, message: CodeSynced, _body: bytes) -> None:
        if message.error:
            logger.warning("code for node %s: %s", index, message.error)
            if index in self._members:
                self._members[index].digests.pop(message.project, None)

    def _take_set_up(self, index: int, message: NodeSetUp, _body: bytes) -> None:
        if index in self._members:
            member = self._members[index]
            member.setup, member.setup_error = message.digest, message.error
            member.setup_hint = message.hint

    def _take_trouble(self, _index: int, message: NodeTrouble, _body: bytes) -> None:
        self._status_writer.add_condition("warning", message.reason, message.message)

    def lose_rank(self, number: int) -> None:
        """A rank of a world is gone: no other call is given to it."""
        if number in self.worlds:
            self.worlds[number].is_alive = False

    def has_instance(self, slot: str, instance: str) -> bool:
        """Whether the object of a kept world is alive."""
        world = self._slots.get(slot)
        return world is not None and world.is_alive and world.instance == instance

    async def _await_store(self, framework: str, preload: Sequence[str]) -> None:
        self.open_store(framework, preload)
        store = self._stores.get(framework)
        if store is not None:
            await self._changed.until(lambda: store.port is not None, timeout_s=STORE_S)
            if store.port is None:
                self._take_store(store, 0)

    def meet(self, world: World) -> dict[str, str]:
        """What the ranks of a world are told of their meeting."""
        if world.meeting is None:
            return {}
        first = self._members.get(world.nodes[0])
        own = first.address if first is not None else ""
        address = self._address if world.meeting.has_store else own or self._address
        return world.meeting.render(address, world.plan.framework)

    # -- finding and making worlds -------------------------------------------------------------

    def find_world(self, call: Call) -> World | None:
        """A world that can take this call at once."""
        asked = call.asked
        world = self._slots.get(asked.slot) if asked.slot else self._spare
        if world is None or not world.is_alive or world.shape != call.shape or self.unseen():
            return None
        if not asked.slot and self._has_grown(world, call):
            return None
        if asked.slot and (world.instance != asked.instance or call.constructor is not None):
            return None
        if not all(self._is_up_to_date(index, asked) for index in world.nodes):
            return None
        if world.meeting is None and not self._meet_at_once(world, wants_store=asked.store):
            return None
        if world is self._spare:
            self._spare = None
        return world

    def _is_up_to_date(self, index: int, asked: CallProfile) -> bool:
        member = self._members.get(index)
        if member is None or member.setup != self.setup.digest:
            return False
        project = asked.project
        return not project.digest or member.digests.get(project.key) == project.digest

    async def prepare_world(self, call: Call) -> World | None:
        """Bring nodes, code and ranks to where the call can start; None when it was ended meanwhile."""
        asked = call.asked
        if asked.world.nodes > len(self.plan.nodes):  # of which an earlier lead knew
            self.scale(asked.world.nodes)
        while True:
            await self._wait_for_nodes(call)
            await self._wait_for_unseen(call)
            if call.stop is not None:
                return None
            plan = self._plan_world(call)
            indexes = [node.index for node in plan.nodes]
            self._sync(call, indexes)
            await self._set_up(call, indexes)
            if asked.store:
                await self._await_store(asked.framework, asked.preload)
            world = self.find_world(call)
            if world is not None or call.stop is not None:
                return world
            await self._make_room(call)
            if all(self._is_up_to_date(index, asked) for index in indexes):
                break  # else one went away meanwhile, and whoever comes in its place has nothing
        made = self._make_world(call, plan)
        self._meet_at_once(made, wants_store=asked.store)
        return made

    def _has_grown(self, world: World, call: Call) -> bool:
        """Whether more nodes came since a world was made of those that were there."""
        asked = call.asked.world
        if asked.min_nodes == asked.nodes:
            return False
        return len(self._plan_world(call).nodes) > len(world.nodes)

    def _plan_world(self, call: Call) -> Plan:
        """The nodes and ranks of a call: all that it asks for, or those that are here if they will do."""
        asked = call.asked.world
        here = None
        if asked.min_nodes < asked.nodes:
            here = [index for index in range(asked.nodes) if self.is_here(index)]
        plan = replace(self.plan, framework=call.asked.framework)
        return plan.with_nodes(make_world_nodes(plan, asked, here))

    async def _wait_for_nodes(self, call: Call) -> None:
        """Until all nodes of a call are here; where fewer will do, for the others only so long, and once."""
        asked, limit_s = call.asked.world, call.asked.launch_timeout_s
        nodes = make_world_nodes(self.plan, asked)
        indexes = [node.index for node in nodes]
        self._given_up &= set(self.missing(list(self._given_up)))
        if not set(self.missing(indexes)) - self._given_up:
            return
        what = f"waiting for {_name_nodes(self.missing(indexes))}"
        call.tell_waiting(CallWaiting(id=call.id, what=what))

        def is_over() -> bool:
            return not self.missing(indexes) or call.stop is not None

        def is_enough() -> bool:
            here = len(indexes) - len(self.missing(indexes))
            return is_over() or (here >= asked.min_nodes and self.is_here(0))

        is_elastic = asked.min_nodes < asked.nodes
        first_s = min(names.FEWER_AFTER_S, limit_s) if is_elastic else limit_s
        if await self._changed.until(is_over, timeout_s=first_s):
            return
        if is_elastic and await self._changed.until(is_enough, timeout_s=limit_s - first_s):
            self._given_up = set(self.missing(indexes))
            if self._given_up:
                num_here = len(indexes) - len(self._given_up)
                without = f"without {_name_nodes(self._given_up)}"
                line = f"going on with {num_here} of {len(indexes)} nodes, {without}"
                call.tell(CallSaid(id=call.id, line=line))
            return
        late = _name_nodes(self.missing(indexes))
        raise NotReady(f"{late} did not join within {limit_s:g} s (launch_timeout)")

    async def _wait_for_unseen(self, call: Call) -> None:
        """Until no node that is out of sight can have ranks of an earlier call."""
        if unseen := self.unseen():
            what = f"waiting for the ranks of {_name_nodes(unseen)}, out of sight, to have ended"
            call.tell_waiting(CallWaiting(id=call.id, what=what))
            await self._changed.until(
                lambda: not self.unseen() or call.stop is not None, timeout_s=None
            )

    def _sync(self, call: Call, indexes: list[int]) -> None:
        """Send each node the code it lacks; what follows on its link finds it there."""
        key, digest = call.asked.project.key, call.asked.project.digest
        if not digest or self.projects is None:
            return
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
            if call.sync is not None and call.sync[0].base == has:
                member.send(*call.sync)
            else:
                whole = whole or self.projects.pack(key)
                member.send(SyncCode(project=key, base=EMPTY.digest, digest=digest), whole)
            member.digests[key] = digest

    async def _set_up(self, call: Call, indexes: list[int]) -> None:
        wanted = self.setup.digest
        todo = [i for i in indexes if i in self._members and self._members[i].setup != wanted]
        if not todo:
            return
        self._drop_worlds()  # their fork servers start anew
        call.tell_waiting(CallWaiting(id=call.id, what="setting up nodes"))
        for index in todo:
            self._members[index].setup_error = ""
            self._members[index].send(self.setup.replaced(cwd=call.asked.project.cwd))

        def is_over() -> bool:
            pending = [i for i in todo if i in self._members and self._members[i].setup != wanted]
            return not pending or call.stop is not None

        await self._changed.until(is_over, timeout_s=None)
        for index in todo:
            member = self._members.get(index)
            if member is not None and member.setup_error:
                error, member.setup, member.setup_error = member.setup_error, "", ""
                raise NotSetUp(f"node {index}: {error}", index, member.setup_hint)

    def _drop_worlds(self) -> None:
        for world in self.worlds.values():
            world.is_alive = False
        self._spare = None
        self.drop_stores()

    async def _make_room(self, call: Call) -> None:
        """End the ranks that those of a new world would stand beside."""
        if call.asked.instance and call.constructor is None:
            raise MustMake
        if self._spare is not None:
            self.dismiss(self._spare, now=True)
            self._spare = None
        await self._clear_slot(call.asked.slot)

    def _make_world(self, call: Call, plan: Plan) -> World:
        asked = call.asked
        world = World(
            self._count(),
            plan,
            call.shape,
            made_for=call.id,
            slot=asked.slot,
            instance=asked.instance,
            version=asked.version,
        )
        self.worlds[world.number] = world
        self._muster(world, asked)
        if world.slot:
            self._slots[world.slot] = world
            if call.constructor is not None:
                order, body = call.constructor
                self.send(world, order.replaced(world=world.number), body)
        return world

    async def _clear_slot(self, slot: str) -> None:
        old = self._slots.pop(slot, None) if slot else None
        if old is not None:
            self.dismiss(old, now=False)
            await self._changed.until(lambda: old.is_cleared, timeout_s=self.plan.grace_s + 5.0)
            self.worlds.pop(old.number, None)

    def _muster(self, world: World, asked: CallProfile) -> None:
        project = asked.project
        about = CallRankSetup(
            framework=world.plan.framework,
            keep=bool(world.slot),
            start=asked.start,
            cwd=project.cwd,
            root=project.root,
            paths=project.paths,
        )
        order = ForkWorld(
            world=world.number,
            nodes=world.plan.nodes,
            preload=asked.preload,
            env=asked.env,
            about=about,
        )
        self.send(world, order)
        if world.plan.nodes != self._first_nodes:
            self._status_writer.keep_world(world.number, world.plan)

    def make_spare(self, call: Call) -> None:
        """Have the ranks of the next call forked before it comes, if it is like this one."""
        plan = self._plan_world(call)
        if self._spare is None and not self.missing([node.index for node in plan.nodes]):
            self._spare = self._make_world(call, plan)

    def put_back(self, world: World | None) -> None:
        """A world that a call took and did not use waits for the next one."""
        if world is None or world.slot:
            return
        if self._spare is None and world.is_alive:
            self._spare = world
        else:
            self.dismiss(world, now=True)

    # -- orders --------------------------------------------------------------------------------

    def send(self, world: World, order: Message, body: bytes = b"") -> None:
        """Node 0 last: it is here, and its ranks would keep this processor from telling the others."""
        for index in reversed(world.nodes):
            member = self._members.get(index)
            if member is not None:
                member.send(order, body)

    async def send_file(self, world: World, order: RunCall, path: str) -> None:
        """A call whose payload lies in a file: to other machines it goes ahead by parts."""
        members = [self._members[index] for index in world.nodes if index in self._members]
        far = [member for member in members if member.ship is not None]
        for member in members:
            if member.ship is None:
                member.send(order.replaced(file=path))
        await asyncio.gather(*(self._ship(member, order, path) for member in far))

    @staticmethod
    async def _ship(member: NodeEntry, order: RunCall, path: str) -> None:
        with contextlib.suppress(OSError):  # then its link breaks, which is heard of
            if member.ship is not None:
                await member.ship(path, path)
                member.send(order.replaced(payload=path))

    def dismiss(self, world: World, *, now: bool, signum: int = signal.SIGTERM) -> None:
        """End a world's ranks; those that work are asked with `signum`."""
        world.is_alive, world.is_dismissed = False, True
        self._leave_meeting(world)
        world.cleared.update(self.missing(world.nodes))
        within_s = self._sight.cut_grace_s if set(self.unseen()) & set(world.nodes) else None
        self.send(world, EndWorld(world=world.number, now=now, signal=signum, within_s=within_s))

    async def dismiss_all(self, *, now: bool) -> None:
        live = list(self.worlds.values())
        for world in live:
            self.dismiss(world, now=now)
        limit_s = self.plan.grace_s + 5.0
        await self._changed.until(
            lambda: all(world.is_cleared for world in live), timeout_s=limit_s
        )
        self.drop_stores()
