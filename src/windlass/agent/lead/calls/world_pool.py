"""Pool of the worlds of a compute that wait for calls: worlds kept in slots, and a spare one.

The pool creates, keeps and ends worlds. The shape of a world is everything that its ranks were forked with.
Worlds of the same shape are interchangeable. `agent.lead.calls.call_lead` decides which call runs on which
world, and when.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from dataclasses import replace

from windlass.agent.lead.calls.call_state import Call
from windlass.agent.lead.calls.ready_nodes import ConstructorNeeded, NotReady, ReadyNodes
from windlass.agent.lead.clusters import Clusters
from windlass.agent.lead.node_table import JoinedNode, NodeTable
from windlass.agent.lead.status_writer import StatusWriter
from windlass.agent.lead.stores import Store, Stores
from windlass.agent.lead.world import Changes, World, WorldTable, make_world_nodes
from windlass.errors import count_noun
from windlass.frameworks.framework import load_framework
from windlass.plan.plan import Plan, make_nodes
from windlass.records import to_json
from windlass.spec.node_resources import NodeSizes
from windlass.wire.messages.calls import CallProfile, CallWaiting
from windlass.wire.messages.computes import ForkWorld, RunCall
from windlass.wire.messages.forkserver import CallRankSetup
from windlass.wire.messages.jobs import EndAgent

CLEAR_MARGIN_S = 5.0  # time for ranks to exit after their grace period
_STORE_S = 30.0


def shape_of(profile: CallProfile) -> str:
    """Return the requirements of a call on its ranks, as a string to compare."""
    project = profile.project
    place = [project.cwd, project.root, project.paths]
    forked = [profile.preload, profile.store, profile.start, profile.framework, profile.sizes]
    return json.dumps([profile.world, profile.env, forked, place], default=to_json)


class WorldPool:
    """Pool of waiting worlds: one for each slot, and a spare one."""

    def __init__(
        self,
        nodes: NodeTable,
        worlds: WorldTable,
        ready_nodes: ReadyNodes,
        stores: Stores,
        clusters: Clusters,
        changed: Changes,
        status_writer: StatusWriter,
    ) -> None:
        self._nodes = nodes
        self._worlds = worlds
        self._ready_nodes = ready_nodes
        self._stores = stores
        self._clusters = clusters
        self._changed = changed
        self._status_writer = status_writer
        self._first_nodes = nodes.plan.nodes  # the nodes in the plan file
        self._slots: dict[str, World] = {}
        self._spare: World | None = None
        self._numbers = itertools.count()  # numbers for worlds and stores

    def has_instance(self, slot: str, instance: str) -> bool:
        """Return whether the object of a kept world is alive."""
        world = self._slots.get(slot)
        return world is not None and world.is_alive and world.instance == instance

    def scale(self, num_nodes: int, *, ends_others: bool = False) -> None:
        """Set the number of nodes. With `ends_others`, order the agents beyond it to exit."""
        plan = self._nodes.plan
        nodes = make_nodes(num_nodes, plan.nodes[0].num_ranks, job_name=plan.name)
        self._nodes.resize(plan.with_nodes(nodes))
        for index in self._nodes.joined() if ends_others else ():
            if index >= num_nodes:
                self._nodes.order(index, EndAgent())

    # -- finding a world -----------------------------------------------------------------------

    def find(self, call: Call) -> World | None:
        """Return a world that can run this call immediately, or None."""
        profile = call.profile
        world = self._slots.get(profile.slot) if profile.slot else self._spare
        if world is None or not world.is_alive or world.shape != call.shape:
            return None
        if self._nodes.one_world.unreachable():
            return None
        if not profile.slot and self._has_grown(world, call):
            return None
        if profile.slot and (world.instance != profile.instance or call.constructor is not None):
            return None
        if not all(self._ready_nodes.is_up_to_date(index, profile) for index in world.nodes):
            return None
        if not self._set_rendezvous(world, profile):
            return None
        if world is self._spare:
            self._spare = None
        return world

    async def prepare(self, call: Call) -> World | None:
        """Prepare nodes, code and ranks for a call. Return None if the call was stopped meanwhile."""
        profile, ready_nodes = call.profile, self._ready_nodes
        if profile.world.nodes > len(self._nodes.plan.nodes):  # an earlier lead was scaled up
            self.scale(profile.world.nodes)
        while True:
            wanted = make_world_nodes(self._nodes.plan, profile.world)
            await ready_nodes.wait_for(call, [node.index for node in wanted])
            if call.stop is not None:
                return None
            plan = self._plan_world(call)
            indexes = [node.index for node in plan.nodes]
            ready_nodes.sync(call, indexes)
            await ready_nodes.set_up(call, indexes, before=self._give_up_all)
            if load_framework(profile.framework).cluster is not None:
                if not await self._await_cluster(call, indexes):
                    continue  # a node was lost meanwhile
            elif profile.store:
                await self._await_store(profile)
            world = self.find(call)
            if world is not None or call.stop is not None:
                return world
            await self._end_replaced_worlds(call)
            if all(ready_nodes.is_up_to_date(index, profile) for index in indexes):
                break  # otherwise a node was replaced meanwhile and has nothing yet
        made = self._make(call, plan)
        self._set_rendezvous(made, profile)
        return made

    def _has_grown(self, world: World, call: Call) -> bool:
        """Return whether a call would get more nodes than a world has, because others have joined since."""
        requested = call.profile.world
        if requested.min_nodes == requested.nodes:
            return False
        return len(self._plan_world(call).nodes) > len(world.nodes)

    def _plan_world(self, call: Call) -> Plan:
        """Return the plan of a call: all requested nodes, or those that have joined if fewer are enough."""
        requested = call.profile.world
        here = None
        if requested.min_nodes < requested.nodes:
            here = [index for index in range(requested.nodes) if index in self._nodes]
        plan = replace(self._nodes.plan, framework=call.profile.framework)
        return plan.with_nodes(make_world_nodes(plan, requested, here))

    # -- rendezvous points -----------------------------------------------------------------------

    def make_rendezvous_env(self, world: World) -> dict[str, str]:
        """Return the rendezvous variables of a world's ranks."""
        if world.rendezvous is None:
            return {}
        first = self._nodes.get(world.nodes[0])
        own = first.address if first is not None else ""
        address, place = self._stores.address, world.rendezvous
        if isinstance(place, Store) and not place.has_store:
            address = own or address
        return load_framework(world.plan.framework).make_call_env(place.describe(address))

    def _set_rendezvous(self, world: World, profile: CallProfile) -> bool:
        """Set the rendezvous point of a world if possible. Return False while the store is not open."""
        if world.rendezvous is not None:
            return True
        if not profile.store:
            world.rendezvous = self._stores.reserve_port(next(self._numbers))
            return True
        framework = world.plan.framework
        store = self._stores.find(framework) or self._clusters.find(framework)
        if store is not None and store.port is not None:
            world.rendezvous = store
        return world.rendezvous is not None

    async def _await_store(self, profile: CallProfile) -> None:
        self._open_store(profile)
        store = self._stores.find(profile.framework)
        if store is not None and not await self._changed.wait_until(
            lambda: store.port is not None, timeout_s=_STORE_S
        ):
            self._stores.reserve_rank0_port(store)

    async def _await_cluster(self, call: Call, indexes: list[int]) -> bool:
        """Wait until the framework's own processes run on all nodes. Return False if the cluster is lost."""
        profile = call.profile
        sizes, number = profile.sizes or NodeSizes(), next(self._numbers)
        own = load_framework(profile.framework).cluster
        if own is not None and own.is_in_project:
            place = profile.project
            sizes = replace(sizes, cwd=place.cwd, paths=(place.root, *place.paths))
        cluster = self._clusters.open(profile.framework, number, indexes, sizes, profile.preload)
        if not cluster.is_settled:
            what = f"starting {profile.framework} on {count_noun(len(indexes), 'node')}"
            call.report_waiting(CallWaiting(id=call.id, what=what))
        await self._changed.wait_until(
            lambda: cluster.is_settled or call.stop is not None,
            timeout_s=profile.launch_timeout_s,
        )
        failure = cluster.find_error()
        if cluster.error and self._clusters.find(profile.framework) is cluster:
            self._clusters.close(profile.framework)
        if failure is not None:
            node, error = failure
            raise NotReady(error, node)
        if not cluster.is_settled:
            late = f"{profile.framework} did not start within {profile.launch_timeout_s:g} s"
            raise NotReady(f"{late} (launch_timeout)", hint="raise launch_timeout=...")
        return not cluster.is_given_up

    def _open_store(self, profile: CallProfile) -> None:
        if self._stores.find(profile.framework) is None:
            number = next(self._numbers)
            self._stores.open(profile.framework, number, profile.preload, is_shared=True)

    def renew_store(self, profile: CallProfile) -> None:
        """Replace a store that has served many calls and that no world uses any more."""
        in_use = [world.rendezvous for world in self._worlds.all()]
        if profile.store and self._stores.is_overused(profile.framework, in_use):
            self._stores.close(profile.framework)
            self._open_store(profile)

    # -- making a world ------------------------------------------------------------------------

    async def _end_replaced_worlds(self, call: Call) -> None:
        """End the spare world and the world in the call's slot, so that a new world can be created."""
        if call.profile.instance and call.constructor is None:
            raise ConstructorNeeded
        if self._spare is not None:
            self.dismiss(self._spare, now=True)
            self._spare = None
        old = self._slots.pop(call.profile.slot, None) if call.profile.slot else None
        if old is not None:
            self.dismiss(old, now=False)
            limit_s = self._nodes.plan.grace_s + CLEAR_MARGIN_S
            await self._changed.wait_until(lambda: old.is_cleared, timeout_s=limit_s)
            self._worlds.forget(old)

    def _make(self, call: Call, plan: Plan) -> World:
        profile = call.profile
        world = World(
            next(self._numbers),
            plan,
            call.shape,
            made_for=call.id,
            slot=profile.slot,
            instance=profile.instance,
            version=profile.version,
        )
        self._worlds.add(world)
        self._worlds.send(world, _make_fork_order(world, profile))
        if plan.nodes != self._first_nodes:
            self._status_writer.keep_world(world.number, plan)
        if world.slot:
            self._slots[world.slot] = world
            if call.constructor is not None:
                order, body = call.constructor
                self._worlds.send(world, order.replaced(world=world.number), body)
        return world

    def make_spare(self, call: Call) -> None:
        """Fork the ranks of a spare world, for a next call of the same shape."""
        plan = self._plan_world(call)
        if self._spare is None and not self._nodes.missing(node.index for node in plan.nodes):
            self._spare = self._make(call, plan)

    def put_back(self, world: World | None) -> None:
        """Return an unused world to the pool, or end it if there is already a spare."""
        if world is None or world.slot:
            return
        if self._spare is None and world.is_alive:
            self._spare = world
        else:
            self.dismiss(world, now=True)

    async def send_call(self, world: World, order: RunCall, path: str) -> None:
        """Send a call with its payload in a file. Other machines get the payload first, in parts."""
        nodes = [node for index in world.rank_nodes if (node := self._nodes.get(index)) is not None]
        for node in nodes:
            if node.ship is None:
                node.send(order.replaced(file=path), b"")
        await asyncio.gather(*(_ship(node, order, path) for node in nodes))

    # -- ending worlds ------------------------------------------------------------------------

    def dismiss(self, world: World, *, now: bool, signum: int | None = None) -> None:
        """End a world's ranks. Busy ranks get `signum`."""
        if isinstance(world.rendezvous, Store):
            self._stores.leave(world.rendezvous)
        world.rendezvous = None
        self._worlds.end(world, now=now, signum=signum)

    async def dismiss_all(self, *, now: bool) -> None:
        live = self._worlds.all()
        for world in live:
            self.dismiss(world, now=now)
        limit_s = self._nodes.plan.grace_s + CLEAR_MARGIN_S
        await self._changed.wait_until(
            lambda: all(world.is_cleared for world in live), timeout_s=limit_s
        )
        self._stores.drop_all()
        self._clusters.drop_all()

    def _give_up_all(self) -> None:
        """Mark all worlds as dead, because nodes restart their fork servers, which ends all ranks."""
        for world in self._worlds.all():
            world.is_alive = False
        self._spare = None
        self._stores.drop_all()
        self._clusters.drop_all(close=True)  # on some nodes the processes may still run


def _make_fork_order(world: World, profile: CallProfile) -> ForkWorld:
    project = profile.project
    about = CallRankSetup(
        framework=world.plan.framework,
        keep=bool(world.slot),
        start=profile.start,
        cwd=project.cwd,
        root=project.root,
        paths=project.paths,
    )
    return ForkWorld(
        world=world.number,
        nodes=world.plan.nodes,
        preload=profile.preload,
        env=profile.env,
        about=about,
    )


async def _ship(node: JoinedNode, order: RunCall, path: str) -> None:
    if node.ship is None:
        return
    with contextlib.suppress(OSError):  # a broken connection is reported as a lost node
        await node.ship(path, path)
        node.send(order.replaced(payload=path), b"")
