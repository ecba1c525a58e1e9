"""Runner of one call on the ranks of a world, from the choice of the world until its ranks are gone.

It waits for what the call needs and for the answers of its ranks. `agent.lead.calls.call_lead` decides whose
turn it is and processes messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from windlass.agent.lead.attempt import SETTLE_S, StopRequest
from windlass.agent.lead.calls.call_queue import CallHistory
from windlass.agent.lead.calls.call_state import Call
from windlass.agent.lead.calls.ready_nodes import ConstructorNeeded, NotReady
from windlass.agent.lead.calls.world_pool import CLEAR_MARGIN_S, WorldPool
from windlass.agent.lead.node_table import NodeTable
from windlass.agent.lead.world import Changes, World, WorldTable, prune_logs
from windlass.agent.silence_limits import Disconnect
from windlass.wire.job_folder import JobFolder
from windlass.wire.messages.calls import CallStarted, RepeatCall
from windlass.wire.messages.computes import RunCall
from windlass.wire.states import CallState
from windlass.wire.status import FailureKind, Verdict, make_job_verdict


class CallRunner:
    """Runner of calls, one at a time. Calls `lose` for a node that does not end its ranks."""

    def __init__(
        self,
        nodes: NodeTable,
        worlds: WorldTable,
        pool: WorldPool,
        history: CallHistory,
        stop: StopRequest,
        changed: Changes,
        folder: JobFolder,
        lose: Callable[..., None],
    ) -> None:
        self._nodes = nodes
        self._worlds = worlds
        self._pool = pool
        self._history = history
        self._stop = stop
        self._changed = changed
        self._folder = folder
        self._lose = lose

    async def run(self, call: Call) -> None:
        """Run a call. Run it a second time if its ranks were gone before it reached them."""
        try:
            await self._run_once(call)
            if not call.is_final:
                call.start_again()
                await self._run_once(call)
        finally:
            call.stop_timer()

    async def _run_once(self, call: Call) -> None:
        """Run the call once. It stays unfinished if its ranks were gone before it reached them."""
        world = self.world_of(call) or self._pool.find(call)
        if world is None and call.attempt is not None:  # its ranks are lost
            self.end(call, call.stop or call.attempt.make_verdict())
            return
        if world is None:
            world = await self._prepare(call)
        if world is None or (call.stop is not None and call.attempt is None):
            self._pool.put_back(world)
            self.end(call, call.stop)
            return
        if call.attempt is None:
            self.dispatch(world, call)
            if call.file:
                await self._pool.send_call(world, self._make_order(world, call), call.file)
        if not world.slot:
            self._pool.make_spare(call)
        await call.over.wait()
        if not call.is_final:
            await self._break_off(world, call)
        await self._tidy(world, call)

    # -- starting ------------------------------------------------------------------------------

    async def _prepare(self, call: Call) -> World | None:
        try:
            return await self._pool.prepare(call)
        except ConstructorNeeded:
            self._send_back(call)
            return None
        except NotReady as why:
            verdict = make_job_verdict(
                self._nodes.plan, why.kind, str(why), at_s=time.time(), node=why.node
            )
            call.stop = call.stop or replace(verdict, next=why.hint or verdict.next)
            return None

    def _send_back(self, call: Call) -> None:
        """Ask the client to repeat the call with the object's constructor. Fail the call if no client can."""
        # listeners of a detached call cannot repeat it
        if not call.listeners or call.profile.detach:
            why = f"the object of {call.profile.name} was lost when its processes ended"
            kind = FailureKind.START_FAILED
            call.stop = make_job_verdict(self._nodes.plan, kind, why, at_s=time.time())
            return
        call.send(RepeatCall(id=call.id, make=True, has=call.profile.project.digest))
        self._history.forget(call)
        call.state = CallState.CANCELLED  # in this lead only, because the client repeats the call

    def world_of(self, call: Call) -> World | None:
        """Return the world that runs a call, if any."""
        return None if call.attempt is None else self._worlds.get(call.attempt.number)

    def dispatch(self, world: World, call: Call) -> None:
        """Start a call and send it to the ranks of a world. A payload in a file is sent later."""
        call.start(world.number, world.plan)
        if call.is_wait_reported:
            call.send(CallStarted(id=call.id))
        if not call.file:
            self._worlds.send(world, self._make_order(world, call), call.body)

    def _make_order(self, world: World, call: Call) -> RunCall:
        profile = call.profile
        before, has_rendezvous = world.version, world.rendezvous is world.sent_rendezvous
        world.version, world.sent_rendezvous = profile.version, world.rendezvous
        return RunCall(
            id=call.id,
            world=world.number,
            name=profile.name,
            method=profile.method,
            sizes=call.sizes,
            collect=profile.collect,
            stream=profile.stream,
            reload=bool(world.slot) and profile.version != before,
            is_watched=profile.is_watched,
            sources=profile.sources,
            meeting={} if has_rendezvous else self._pool.make_rendezvous_env(world),
            part=world.rendezvous.next_part() if world.rendezvous else 0,
        )

    # -- the end of a call ---------------------------------------------------------------------

    async def _break_off(self, world: World, call: Call) -> None:
        """End the other ranks after a failure or a request to stop the call."""
        attempt = call.attempt
        if attempt is None:
            return
        if world.slot and world.is_alive and call.stop is None:
            # kept ranks that all fail within this time stay alive
            await self._changed.wait_until(lambda: attempt.is_done, timeout_s=2 * SETTLE_S)
        await attempt.wait_for_cause(
            self._changed,
            lambda: attempt.is_done or call.stop is not None,
            timeout_s=self._nodes.plan.grace_s,
        )
        if not (world.slot and world.is_alive and attempt.is_done):
            must_hurry = call.stop is not None and self._stop.now
            self._pool.dismiss(world, now=must_hurry, signum=call.stop_signal)
            if not attempt.is_done:
                await self._changed.wait_until(lambda: attempt.is_done, timeout_s=SETTLE_S)
        if call.may_start_again(world):
            return
        verdict = attempt.make_verdict()
        if call.stop is not None and (verdict is None or verdict.at_s > call.stop.at_s):
            verdict = call.stop
        self.end(call, verdict)

    def end(self, call: Call, verdict: Verdict | None, *, is_reported: bool = False) -> None:
        """End a call with a verdict. With `is_reported`, its clients know it already."""
        if call.is_final:
            return
        call.settle(verdict, is_reported=is_reported)
        self._history.settle(call)

    async def _tidy(self, world: World, call: Call) -> None:
        """Wait until the ranks of a finished call are gone, so that the next call can start."""
        if world.slot and world.is_alive:
            return
        self._pool.dismiss(world, now=False)
        self._pool.renew_store(call.profile)
        limit_s = self._nodes.plan.grace_s + CLEAR_MARGIN_S
        if not await self._changed.wait_until(lambda: world.is_cleared, timeout_s=limit_s):
            self._pool.dismiss(world, now=True)
            for index in set(world.nodes) - world.cleared:
                self._lose(index, "it did not end its ranks", disconnect=Disconnect.CUT)
        self._worlds.forget(world)
        prune_logs(self._folder, world.number)
