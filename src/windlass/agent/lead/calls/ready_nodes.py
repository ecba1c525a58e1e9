"""Preparation of nodes for a call: wait for them, send them the call's code, and set them up.

A call also waits until no unreachable node can still run ranks. If a call cannot start, this module raises an
exception that the lead handles. `agent.lead.calls.world_pool` decides which ranks run the call.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from windlass import names
from windlass.agent.lead.calls.call_state import Call
from windlass.agent.lead.node_table import NodeTable
from windlass.agent.lead.world import Changes
from windlass.agent.projects import Projects
from windlass.bundle.manifest import EMPTY
from windlass.errors import WindlassError
from windlass.records import to_json
from windlass.spec.work import ImageStep
from windlass.wire.message import Handlers
from windlass.wire.messages.calls import CallNotice, CallProfile, CallWaiting
from windlass.wire.messages.computes import CodeSynced, NodeSetUp, SetUpNode, SyncCode
from windlass.wire.status import FailureKind

logger = logging.getLogger(__name__)


class ConstructorNeeded(Exception):
    """Raised if the object of a call no longer exists. Only the client can recreate it."""


class NotReady(Exception):
    """Raised if a call cannot start. `node` is the node that caused it, and `hint` describes the fix."""

    kind = FailureKind.START_FAILED

    def __init__(self, why: str, node: int | None = None, hint: str = "") -> None:
        super().__init__(why)
        self.node = node
        self.hint = hint


class SetupFailed(NotReady):
    """Raised if an image step failed."""

    kind = FailureKind.STEP_FAILED


class ReadyNodes:
    """Preparation of nodes for calls. `setup` returns the set-up that nodes currently need."""

    def __init__(
        self,
        nodes: NodeTable,
        changed: Changes,
        projects: Projects | None,
        setup: Callable[[], SetUpNode],
    ) -> None:
        self._nodes = nodes
        self._changed = changed
        self._projects = projects
        self._setup = setup
        self._given_up: set[int] = set()  # missing nodes that calls no longer wait for
        self.handlers: Handlers = {CodeSynced: self._take_synced, NodeSetUp: self._take_set_up}

    def is_up_to_date(self, index: int, profile: CallProfile) -> bool:
        """Return whether a node has the code and the set-up that a call needs."""
        node = self._nodes.get(index)
        if node is None or node.setup != self._setup().digest:
            return False
        project = profile.project
        return not project.digest or node.digests.get(project.key) == project.digest

    # -- joining ------------------------------------------------------------------------------

    async def wait_for(self, call: Call, indexes: Sequence[int]) -> None:
        """Wait until these nodes have joined and no unreachable node can still run ranks of earlier calls."""
        await self._wait_for_nodes(call, indexes)
        one_world = self._nodes.one_world
        if unreachable := one_world.unreachable():
            what = f"waiting for the ranks of unreachable {_name_nodes(unreachable)} to end"
            call.report_waiting(CallWaiting(id=call.id, what=what))
            await self._changed.wait_until(
                lambda: not one_world.unreachable() or call.stop is not None, timeout_s=None
            )

    async def _wait_for_nodes(self, call: Call, indexes: Sequence[int]) -> None:
        """Wait for all nodes. If fewer are enough, wait for the others only once and for a limited time."""
        requested, limit_s = call.profile.world, call.profile.launch_timeout_s
        self._given_up &= set(self._nodes.missing(self._given_up))
        if not set(self._nodes.missing(indexes)) - self._given_up:
            return
        what = f"waiting for {_name_nodes(self._nodes.missing(indexes))}"
        call.report_waiting(CallWaiting(id=call.id, what=what))

        def is_over() -> bool:
            return not self._nodes.missing(indexes) or call.stop is not None

        def is_enough() -> bool:
            num_joined = len(indexes) - len(self._nodes.missing(indexes))
            return is_over() or (num_joined >= requested.min_nodes and 0 in self._nodes)

        is_elastic = requested.min_nodes < requested.nodes
        first_s = min(names.FEWER_AFTER_S, limit_s) if is_elastic else limit_s
        if await self._changed.wait_until(is_over, timeout_s=first_s):
            return
        if is_elastic and await self._changed.wait_until(is_enough, timeout_s=limit_s - first_s):
            self._give_up(call, indexes)
            return
        late = _name_nodes(self._nodes.missing(indexes))
        raise NotReady(f"{late} did not join within {limit_s:g} s (launch_timeout)")

    def _give_up(self, call: Call, indexes: Sequence[int]) -> None:
        self._given_up = set(self._nodes.missing(indexes))
        if self._given_up:
            num_joined = len(indexes) - len(self._given_up)
            without = f"without {_name_nodes(self._given_up)}"
            line = f"starting with {num_joined} of {len(indexes)} nodes, {without}"
            call.send(CallNotice(id=call.id, line=line))

    # -- code ----------------------------------------------------------------------------------

    def sync(self, call: Call, indexes: Sequence[int]) -> None:
        """Send each node the code it lacks. Messages sent later on the same connection can rely on it."""
        key, digest = call.profile.project.key, call.profile.project.digest
        if not digest or self._projects is None:
            return
        self._sync_own(self._projects, call)
        self._nodes[0].digests[key] = digest
        whole: bytes | None = None
        for index in indexes:
            node = self._nodes[index]
            has = node.digests.get(key, EMPTY.digest)
            if index == 0 or has == digest:
                continue
            if call.sync is not None and call.sync[0].base == has:
                node.send(*call.sync)
            else:
                whole = whole or self._projects.pack(key)
                node.send(SyncCode(project=key, base=EMPTY.digest, digest=digest), whole)
            node.digests[key] = digest

    @staticmethod
    def _sync_own(projects: Projects, call: Call) -> None:
        if projects.digest(call.profile.project.key) == call.profile.project.digest:
            return
        if call.sync is None:
            raise NotReady("node 0 does not have the project's code. Repeat the call")
        try:
            projects.apply(*call.sync)
        except WindlassError as error:
            raise NotReady(f"the code could not be unpacked: {error.message}", 0) from error

    def _take_synced(self, index: int, message: CodeSynced, _body: bytes) -> None:
        if message.error:
            logger.warning("code for node %s: %s", index, message.error)
            if index in self._nodes:
                self._nodes[index].digests.pop(message.project, None)

    # -- set-up --------------------------------------------------------------------------------

    async def set_up(self, call: Call, indexes: Sequence[int], before: Callable[[], None]) -> None:
        """Set up the nodes that need it. If any does, call `before` first, which gives up all ranks."""
        wanted = self._setup().digest
        todo = [index for index in indexes if self._lacks_setup(index)]
        if not todo:
            return
        before()
        call.report_waiting(CallWaiting(id=call.id, what="setting up nodes"))
        for index in todo:
            self._nodes[index].setup_error = ""
            self._nodes.order(index, self._setup().replaced(cwd=call.profile.project.cwd))

        def is_over() -> bool:
            pending = [i for i in todo if i in self._nodes and self._nodes[i].setup != wanted]
            return not pending or call.stop is not None

        await self._changed.wait_until(is_over, timeout_s=None)
        for index in todo:
            node = self._nodes.get(index)
            if node is not None and node.setup_error:
                error, node.setup, node.setup_error = node.setup_error, "", ""
                raise SetupFailed(f"node {index}: {error}", index, node.setup_hint)

    def _lacks_setup(self, index: int) -> bool:
        node = self._nodes.get(index)
        return node is not None and node.setup != self._setup().digest

    def _take_set_up(self, index: int, message: NodeSetUp, _body: bytes) -> None:
        if index in self._nodes:
            node = self._nodes[index]
            node.setup, node.setup_error = message.digest, message.error
            node.setup_hint = message.hint


def make_setup(
    env: Mapping[str, str | None],
    steps: Sequence[ImageStep],
    hidden: Mapping[str, str] | None = None,
) -> SetUpNode:
    """Return the order to set up nodes. Its digest is empty if there is nothing to do.

    `hidden` has the values of secrets that changed since the nodes started. Nodes get them, but they are
    never displayed.
    """
    content = {"env": env, "steps": to_json(steps), "hidden": hidden or {}}
    text = json.dumps(content, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest() if any(content.values()) else ""
    return SetUpNode(env=env, steps=steps, hidden=hidden or {}, digest=digest)


def _name_nodes(indexes: Iterable[int]) -> str:
    return ", ".join(f"node {index}" for index in sorted(indexes))
