"""The lead of warm nodes: takes calls from clients, in order, and runs one at a time on the worlds it keeps.

The rule: calls run in the order in which they came, whoever asked, one at a time; each waits for the ranks of
the one before to be gone. While nothing is asked, a spare world of the last shape waits with its ranks
forked. What a client may ask is `agent.lead.call_server`; ranks and processes are the nodes' business.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from dataclasses import replace
from typing import Any

from windlass import names
from windlass.agent.lead.attempt import Attempt
from windlass.agent.lead.call_history import CallHistory
from windlass.agent.lead.call_queue import CallQueue
from windlass.agent.lead.call_state import Call, RankAnswer
from windlass.agent.lead.failure import make_job_verdict
from windlass.agent.lead.inactivity import Inactivity
from windlass.agent.lead.not_ready import MustMake, NotReady
from windlass.agent.lead.status_writer import StatusWriter
from windlass.agent.lead.world_pool import WorldPool
from windlass.agent.lead.worlds import World
from windlass.agent.silence_limits import SIGHT, Parting, SilenceLimits
from windlass.errors import WindlassError
from windlass.plan.plan import Plan
from windlass.wire.messages.calls import (
    CallAgain,
    CallPrinted,
    CallQueued,
    CallSaid,
    CallStarted,
)
from windlass.wire.messages.computes import (
    CallAnswer,
    CallItem,
    RankGone,
    RankPrinted,
    RunCall,
    SendMore,
    SettingUp,
    WorldAbsent,
)
from windlass.wire.messages.ranks import RankReport
from windlass.wire.payloads import forget
from windlass.wire.states import RankState
from windlass.wire.status import FailureKind, Phase, Verdict

logger = logging.getLogger(__name__)

_SETTLE_S = 0.3  # how long a verdict waits for a failure that came earlier but is heard of later
_CLEAR_MARGIN_S = 5.0
_ABANDONED_S = 10.0


class CallLead(WorldPool):
    """One compute, from the first node that joins until somebody ends it or nobody has called for long."""

    def __init__(
        self,
        plan: Plan,
        status_writer: StatusWriter,
        *,
        address: str = "",
        sight: SilenceLimits = SIGHT,
    ) -> None:
        super().__init__(plan, status_writer, address=address, sight=sight)
        self.history = CallHistory()
        self.queue = CallQueue()
        self.inactivity = Inactivity(
            plan.work.ttl_s,  # type: ignore[union-attr]
            idle_s=lambda: self.queue.idle_s,
            end=lambda why: self.end(FailureKind.TIMEOUT, why),
        )
        self.record: dict[str, Any] = {}  # what was deployed here, to be called by name
        self._handlers |= {
            CallAnswer: self._take_answer,
            CallItem: self._take_answer,
            RankPrinted: self._take_log,
            RankGone: self._take_end,
            WorldAbsent: self._take_absence,
            RankReport: lambda _index, report, _body: status_writer.report(report),
            SettingUp: self._take_setting_up,
        }

    @property
    def is_idle(self) -> bool:
        return self.queue.is_idle

    # -- the compute's life --------------------------------------------------------------------

    async def run(self) -> None:
        """Until it is ended; afterwards the status is final."""
        self._status_writer.set_phase(Phase.RUNNING, names.REASON_READY, "waiting for calls")
        self.inactivity.check()
        while self.stopped is None:
            call = self.queue.start_next()
            if call is None:
                await self.queue.wait()
                continue
            try:
                await self._run_call(call)
            except WindlassError as error:
                self._refuse(call, error.message)
            except Exception as error:  # a fault of ours must not end the compute
                logger.exception("call %s", call.id)
                self._refuse(call, f"the lead failed: {error!r}")
            finally:
                self.queue.end_current()
        for call in self.queue.all():
            self._end_call(call, self.stopped)
        await self.dismiss_all(now=self.must_hurry)
        self._status_writer.set_verdict(self.stopped, final=True)
        is_idle = self.stopped.kind is FailureKind.TIMEOUT
        phase = Phase.SUCCEEDED if is_idle else Phase.CANCELLED
        reason = names.REASON_INACTIVE if is_idle else names.REASON_CANCELLED
        self._status_writer.set_phase(phase, reason, self.stopped.message)

    def end(
        self, kind: FailureKind, message: str, *, now: bool = False, signum: int = signal.SIGTERM
    ) -> None:
        """Somebody wants the compute to end."""
        super().end(kind, message, now=now, signum=signum)
        self.queue.wake()
        if (call := self.queue.current) is not None:
            call.stop = call.stop or self.stopped
            call.stop_signal = self.stop_signal
            call.end()

    async def leave(self) -> None:
        """This node is told to stop: its calls are lost with it, and nodes end their ranks."""

    @property
    def has_lost_nodes(self) -> bool:
        """Whether a lead that comes after this one waits for its farewell: calls go on with any nodes."""
        return False

    # -- calls ---------------------------------------------------------------------------------

    def ask(self, call: Call) -> None:
        """Queue a call. One that kept ranks can take at once is theirs before this returns.

        Such a call never meets the queue, unless something goes wrong with it.
        """
        self.history.add(call)
        call.timer = self._start_timer(call)
        if self.is_idle and call.asked.slot and not call.file:
            world = self.find_world(call)
            if world is not None:
                self.queue.current = call
                call.on_trouble = self.queue.put_first
                self._dispatch(world, call)
                return
        if ahead := self.queue.add(call):
            call.tell_waiting(CallQueued(id=call.id, ahead=len(ahead), first=ahead[0].id))

    def abandon(self, call: Call) -> None:
        """Nobody listens to a stream any more: it is ended, unless somebody comes back to it."""

        def look() -> None:
            if not call.listeners:
                self.cancel(call, "nobody listened to its stream any more")

        asyncio.get_running_loop().call_later(_ABANDONED_S, look)

    def cancel(
        self,
        call: Call,
        why: str,
        *,
        kind: FailureKind = FailureKind.CANCELLED,
        signum: int = signal.SIGTERM,
    ) -> None:
        """End a call, wherever it is; its compute stays."""
        if call.is_final:
            return
        if call.stop is None:
            call.stop_signal = signum
        call.stop = call.stop or make_job_verdict(self.plan, kind, why, at_s=time.time())
        if self.queue.remove(call):
            call.stop_timer()
            self._end_call(call, call.stop)
        else:
            call.end()
            self._changed.set()

    async def _run_call(self, call: Call) -> None:
        try:
            await self._start_call(call)
            if not call.is_final:
                call.start_again()
                await self._start_call(call)
        finally:
            call.stop_timer()

    async def _start_call(self, call: Call) -> None:
        """Run it on ranks. It has not ended where those that waited for it were gone: none has seen it."""
        world = self._world_of(call) or self.find_world(call)
        if world is None and call.attempt is not None:  # it went with its ranks
            self._end_call(call, call.stop or call.attempt.make_verdict())
            return
        if world is None:
            world = await self._prepare(call)
        if world is None or (call.stop is not None and call.attempt is None):
            self.put_back(world)
            self._end_call(call, call.stop)
            return
        if call.attempt is None:
            self._dispatch(world, call)
            if call.file:
                await self.send_file(world, self._make_order(world, call), call.file)
        if not world.slot:
            self.make_spare(call)
        await call.over.wait()
        if not call.is_final:
            await self._break_off(world, call)
        await self._tidy(world, call)

    def _start_timer(self, call: Call) -> asyncio.TimerHandle | None:
        limit_s = call.asked.timeout_s
        if limit_s is None:
            return None
        why = f"the call was not done after its time limit of {limit_s:g} s"
        loop = asyncio.get_running_loop()
        return loop.call_later(limit_s, lambda: self.cancel(call, why, kind=FailureKind.TIMEOUT))

    async def _prepare(self, call: Call) -> World | None:
        try:
            return await self.prepare_world(call)
        except MustMake:
            self._send_back(call)
            return None
        except NotReady as why:
            verdict = make_job_verdict(
                self.plan, why.kind, str(why), at_s=time.time(), node=why.node
            )
            call.stop = call.stop or replace(verdict, next=why.hint or verdict.next)
            return None

    def _send_back(self, call: Call) -> None:
        """Have the client say it again with what makes its object; one that nobody listens to fails."""
        if not call.listeners or call.asked.detach:  # those that listen to that one cannot
            why = f"the object of {call.asked.name} is gone with the processes that held it"
            kind = FailureKind.START_FAILED
            call.stop = make_job_verdict(self.plan, kind, why, at_s=time.time())
            return
        call.tell(CallAgain(id=call.id, make=True, has=call.asked.project.digest))
        self.history.forget(call)
        call.state = "cancelled"  # here: it comes again

    def _world_of(self, call: Call) -> World | None:
        return None if call.attempt is None else self.worlds.get(call.attempt.number)

    def _dispatch(self, world: World, call: Call) -> None:
        call.start(world.number, world.plan)
        if call.is_told_to_wait:
            call.tell(CallStarted(id=call.id))
        if not call.file:
            self.send(world, self._make_order(world, call), call.body)

    def _make_order(self, world: World, call: Call) -> RunCall:
        asked = call.asked
        before, meeting, met = world.version, self.meet(world), world.met
        world.version, world.met = asked.version, meeting
        return RunCall(
            id=call.id,
            world=world.number,
            name=asked.name,
            method=asked.method,
            sizes=call.sizes,
            collect=asked.collect,
            stream=asked.stream,
            reload=bool(world.slot) and asked.version != before,
            is_watched=asked.is_watched,
            sources=asked.sources,
            meeting=meeting if meeting != met else {},
            part=world.meeting.next_part() if world.meeting else 0,
        )

    def _take_answer(self, _index: int, message: CallAnswer | CallItem, body: bytes) -> None:
        call = self.history.get(message.call)
        if call is None or call.is_final:
            forget(message.file)
            return
        answer = RankAnswer(message, body)
        is_item = isinstance(message, CallItem)
        if isinstance(message, CallItem):
            if message.waits:
                call.pacing = asyncio.ensure_future(self._keep_pace(call))
            call.yielded(answer)
        else:
            call.answered(answer)
        has_ended = call.has_returned and call.stop is None
        is_raised = isinstance(message, CallAnswer) and message.state == RankState.RAISED
        if is_raised or call.asked.collect == "all" or message.rank == 0:
            call.pass_on(answer, at_once=is_item)
        if has_ended:
            call.tell_unsaid(ends=True)
            self._end_call(call, None, is_told=True)
            if call.on_trouble is not None:  # it never met the queue
                call.stop_timer()
                self.queue.end_current()

    async def _keep_pace(self, call: Call) -> None:
        """Have a stream go on once all its readers have caught up: what they lack is held here."""
        for listener in list(call.listeners):
            await listener.catch_up()
        world = self._world_of(call)
        if world is not None:
            self.send(world, SendMore(world=world.number))

    def _take_log(self, index: int, message: RankPrinted, body: bytes) -> None:
        call = self.queue.current
        if call is not None and message.call in ("", call.id):
            call.tell(CallPrinted(id=call.id, rank=message.rank), body)
        if index and self.keeps_logs:
            self.keep_log(message.world, message.rank, body)

    def _take_end(self, _index: int, message: RankGone, _body: bytes) -> None:
        """A rank's process ended before it answered, or while it was kept."""
        self.lose_rank(message.world)
        if (call := self.queue.current) is not None:
            call.lose_rank(message.outcome, given=message.given, answered=message.answered)

    def _take_absence(self, index: int, message: WorldAbsent, _body: bytes) -> None:
        """A node was given a call for ranks that it does not have."""
        self.lose_rank(message.world)
        call = self.queue.current
        if call is not None and call.attempt is not None and call.attempt.number == message.world:
            call.lose_node(index, "its ranks were gone before the call came")

    def _take_setting_up(self, index: int, message: SettingUp, _body: bytes) -> None:
        if (call := self.queue.current) is not None:
            call.tell(CallSaid(id=call.id, line=f"node {index}: {message.line}"))

    def lose(self, index: int, why: str = "", *, parting: Parting = Parting.CLOSED) -> None:
        """A node is gone, and with it its ranks of every world."""
        was_here = self.is_here(index)
        super().lose(index, why, parting=parting)
        if was_here and self.queue.current is not None:
            self.queue.current.lose_node(index, why)

    # -- the end of a call ---------------------------------------------------------------------

    async def _break_off(self, world: World, call: Call) -> None:
        """A rank failed, or somebody ended the call: the others are ended too."""
        attempt = call.attempt
        if attempt is None:
            return
        if world.slot and world.is_alive and call.stop is None:
            # ranks that are kept are given the chance to fail together, and stay
            await self._changed.until(lambda: attempt.is_done, timeout_s=2 * _SETTLE_S)
        await self._hear_cause(call, attempt)
        if not (world.slot and world.is_alive and attempt.is_done):
            must_hurry = call.stop is not None and self.must_hurry
            self.dismiss(world, now=must_hurry, signum=call.stop_signal)
            if not attempt.is_done:
                await self._changed.until(lambda: attempt.is_done, timeout_s=_SETTLE_S)
        if call.may_start_again(world):
            return
        verdict = attempt.make_verdict()
        if call.stop is not None and (verdict is None or verdict.at_s > call.stop.at_s):
            verdict = call.stop
        self._end_call(call, verdict)

    async def _hear_cause(self, call: Call, attempt: Attempt) -> None:
        """While all that failed have only lost a peer, wait for those that failed before, as any lead."""

        def is_over() -> bool:
            is_known = not attempt.has_only_consequences
            return is_known or attempt.is_done or call.stop is not None

        await self._changed.until(is_over, timeout_s=self.plan.grace_s)

    def _end_call(self, call: Call, verdict: Verdict | None, *, is_told: bool = False) -> None:
        if call.is_final:
            return
        call.settle(verdict, is_told=is_told)
        self.history.settle(call)

    def _refuse(self, call: Call, why: str) -> None:
        kind = FailureKind.START_FAILED
        self._end_call(call, make_job_verdict(self.plan, kind, why, at_s=time.time()))

    async def _tidy(self, world: World, call: Call) -> None:
        """After a call: its ranks are gone before the next one starts, and a spare world waits for it."""
        if world.slot and world.is_alive:
            return
        self.dismiss(world, now=False)
        if call.asked.store:
            asked = call.asked
            self.renew_store(self.worlds.values(), asked.framework, asked.preload)
        limit_s = self.plan.grace_s + _CLEAR_MARGIN_S
        if not await self._changed.until(lambda: world.is_cleared, timeout_s=limit_s):
            self.dismiss(world, now=True)
            for index in set(world.nodes) - world.cleared:
                self.lose(index, "it did not end its ranks", parting=Parting.CUT)
        self.worlds.pop(world.number, None)
        self.prune_logs(world.number)
