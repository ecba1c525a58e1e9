"""One call as the lead knows it: what was asked, who listens, what ranks answered, how it ended.

And as others see it: its status in the form of a job's, and what its ranks printed. Gives no orders.
Which calls are kept, and for how long, is `agent.lead.calls.call_queue`.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os.path import exists
from typing import Generic, TypeVar

from windlass import names
from windlass.agent.lead.attempt import Attempt
from windlass.agent.lead.world import World
from windlass.agent.link.agent_link import Link
from windlass.agent.link.payload_parts import send_parts
from windlass.plan.plan import Plan
from windlass.wire.job_folder import JobFolder
from windlass.wire.log_lines import number_node
from windlass.wire.message import Message
from windlass.wire.messages.calls import CallEnded, CallProfile, CallResult, CallResults
from windlass.wire.messages.computes import CallAnswer, CallItem, MakeObject, SyncCode
from windlass.wire.payloads import forget
from windlass.wire.results import Outcome
from windlass.wire.states import CallState, RankState
from windlass.wire.status import (
    Condition,
    FailureKind,
    JobStatus,
    Phase,
    RankStatus,
    Verdict,
    make_ranks,
)

_SLOW_S = 24 * 3600.0
_SMALL_BYTES = 64 << 10
_KEPT_ITEM_BYTES = 16 << 20


Said = TypeVar("Said", CallAnswer, CallItem)
_PHASES = {
    CallState.QUEUED: Phase.PENDING,
    CallState.RUNNING: Phase.RUNNING,
    CallState.RETURNED: Phase.SUCCEEDED,
    CallState.FAILED: Phase.FAILED,
    CallState.CANCELLED: Phase.CANCELLED,
}


@dataclass(slots=True)
class RankAnswer(Generic[Said]):
    """What one rank answered, or yields: its message, and its payload, in memory or in the message's file."""

    message: Said
    body: bytes = b""

    @property
    def num_bytes(self) -> int:
        return sum(self.message.sizes)

    @property
    def file(self) -> str:
        return self.message.file


class CallListener:
    """A client that is told of a call as it goes; frames leave in the order they came."""

    def __init__(self, link: Link, *, is_remote: bool) -> None:
        self.link = link
        self._is_remote = is_remote
        self._waiting: list[tuple[Message, bytes, str]] = []
        self._task: asyncio.Task[None] | None = None

    def tell(self, message: Message, body: bytes = b"", file: str = "") -> None:
        """Say something; its payload may be in a file, which goes ahead by parts to other machines."""
        if self._waiting or (file and self._is_remote):
            self._waiting.append((message, body, file))
            if self._task is None or self._task.done():
                self._task = asyncio.ensure_future(self._send())
        else:
            self.link.send(message.replaced(file=file) if file else message, body)

    async def catch_up(self) -> None:
        """Until what was told has left, or nobody is there to read it."""
        if self._task is not None:
            await asyncio.wait({self._task})
        with contextlib.suppress(OSError):
            await self.link.drain(timeout_s=_SLOW_S)

    async def _send(self) -> None:
        try:
            while self._waiting:
                message, body, file = self._waiting[0]
                if file:
                    # an item that another one has read is gone
                    with contextlib.suppress(FileNotFoundError):
                        await send_parts(self.link, file, file)
                        self.link.send(message.replaced(payload=file), body)
                    if isinstance(message, CallResult) and not message.state:
                        forget(file)
                else:
                    self.link.send(message, body)
                del self._waiting[0]
        except (OSError, ConnectionError):
            self._waiting.clear()


@dataclass(slots=True)
class Call:
    """One call, from the frame that asked for it to its last answer."""

    id: str
    asked: CallProfile
    sizes: Sequence[int]
    body: bytes
    shape: str  # of the worlds that can run it
    file: str = ""
    sync: tuple[SyncCode, bytes] | None = None
    constructor: tuple[MakeObject, bytes] | None = None
    created_at_s: float = field(default_factory=time.time)
    ended_at_s: float | None = None
    state: CallState = CallState.QUEUED
    attempt: Attempt | None = None
    unreached: set[int] = field(default_factory=set)  # ranks that were gone before it came to them
    answers: dict[int, RankAnswer[CallAnswer]] = field(default_factory=dict)
    items: list[RankAnswer[CallItem]] = field(default_factory=list)
    item_bytes: int = 0
    unread: list[str] = field(default_factory=list)  # files of items that are no longer kept
    unsaid: list[RankAnswer[CallAnswer]] = field(
        default_factory=list
    )  # small ones, told together at the end
    verdict: Verdict | None = None
    is_told_to_wait: bool = False  # then its start is told, too
    stop: Verdict | None = None  # somebody ended it: cancel, timeout
    stop_signal: int = signal.SIGTERM  # how its ranks hear of that
    listeners: list[CallListener] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    timer: asyncio.TimerHandle | None = None  # of its time limit
    pacing: asyncio.Future[None] | None = None  # of a stream
    on_trouble: Callable[[Call], None] | None = None  # for one that nobody waits for

    @property
    def is_final(self) -> bool:
        return self.state.is_final

    def start(self, number: int, world: Plan) -> None:
        self.state = CallState.RUNNING
        self.attempt = Attempt(number, world)

    def may_start_again(self, world: World) -> bool:
        """Whether all its ranks were gone before it came to them, and others can take their place.

        Not if they were forked for it: others would do no better. Nor if their object is gone, and the
        client that could make it anew.
        """
        is_unseen = self.attempt is not None and len(self.unreached) == self.attempt.num_ranks
        can_make = not world.instance or not self.asked.detach
        return is_unseen and can_make and self.stop is None and world.made_for != self.id

    def start_again(self) -> None:
        """As before its first start."""
        self.state, self.attempt = CallState.QUEUED, None
        self.unreached.clear()
        self.over.clear()
        self.on_trouble = None  # whoever starts it again waits for it

    def yielded(self, answer: RankAnswer[CallItem]) -> None:
        """A rank has yielded something; a client that comes later gets the last ones, as many as are kept."""
        self.items.append(answer)
        self.item_bytes += answer.num_bytes
        while self.item_bytes > _KEPT_ITEM_BYTES and len(self.items) > 1:
            oldest = self.items.pop(0)
            self.item_bytes -= oldest.num_bytes
            if oldest.file:  # a listener may be slow: the one that reads it removes it
                self.unread = [path for path in (*self.unread, oldest.file) if exists(path)]

    def answered(self, answer: RankAnswer[CallAnswer]) -> None:
        """A rank has answered; the first failure and the last answer end the call."""
        if self.attempt is None:
            return
        message = answer.message
        outcome = Outcome(
            rank=message.rank,
            attempt=self.attempt.number,
            state=message.state,
            at_s=message.at_s,
            error=message.error,
            exit_code=message.exit_code,
        )
        self.answers[message.rank] = answer
        self.add(outcome)

    def add(self, outcome: Outcome) -> None:
        """How a rank ended its part."""
        if self.attempt is not None:
            self.attempt.add(outcome, exited=True)
            if outcome.is_failure or self.attempt.is_done:
                self.end()

    def lose_rank(self, outcome: Outcome, *, given: str, answered: str) -> None:
        """A rank's process is gone, with the call it was given last, and the one it answered last.

        It counts for this call if that is on the rank's world and was not answered by it: also where the
        rank was gone before the call came, of which its node cannot know that it matters.
        """
        attempt = self.attempt
        if attempt is None or outcome.attempt != attempt.number or answered == self.id:
            return
        if given != self.id:
            self.unreached.add(outcome.rank)
        self.add(outcome)

    def lose_node(self, index: int, why: str) -> None:
        """A node is gone, or has nothing of the ranks that this call was for."""
        if self.attempt is not None:
            for outcome in list(self.attempt.lose_node(index, why)):
                self.add(outcome)

    def end(self) -> None:
        """There is nothing more to wait for, or no reason to."""
        self.over.set()
        if self.on_trouble is not None and not self.has_returned:
            self.on_trouble(self)

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def tell(self, message: Message, body: bytes = b"") -> None:
        for listener in self.listeners:
            listener.tell(message, body)

    @property
    def has_returned(self) -> bool:
        """Whether every rank has, and none failed."""
        attempt = self.attempt
        return attempt is not None and attempt.is_done and not attempt.has_failure

    def tell_answer(
        self, listener: CallListener, answer: RankAnswer[CallAnswer] | RankAnswer[CallItem]
    ) -> None:
        """One rank's answer, or one of the things it yields."""
        message = answer.message
        result = CallResult(id=self.id, rank=message.rank, sizes=message.sizes, at_s=message.at_s)
        if isinstance(message, CallAnswer):
            result = result.replaced(
                state=message.state, error=message.error, exit_code=message.exit_code
            )
        listener.tell(result, answer.body, answer.file)

    def pass_on(self, answer: RankAnswer[CallAnswer]) -> None:
        """Tell all listeners, small ones together at the end."""
        if answer.file or len(answer.body) > _SMALL_BYTES:
            for listener in self.listeners:
                self.tell_answer(listener, answer)
        else:
            self.unsaid.append(answer)

    def tell_waiting(self, message: Message) -> None:
        """What it waits for, to all listeners."""
        self.is_told_to_wait = True
        self.tell(message)

    def tell_unsaid(self, *, ends: bool = False) -> None:
        """Tell those that waited in one frame, which is the end of a call that went well, too."""
        unsaid, self.unsaid = self.unsaid, []
        if unsaid or ends:
            answers = [answer.message for answer in unsaid]
            results = CallResults(id=self.id, ends=ends, answers=answers)
            self.tell(results, b"".join([answer.body for answer in unsaid]))

    def tell_end(self, listener: CallListener) -> None:
        listener.tell(CallEnded(id=self.id, state=self.state, verdict=self.verdict))

    def settle(self, verdict: Verdict | None, *, is_told: bool) -> None:
        """It ends so: tell whoever listens, unless they know, and let go of what it brought."""
        self.verdict, self.ended_at_s = verdict, time.time()
        self.tell_unsaid()
        if verdict is None:
            self.state = CallState.RETURNED
        else:
            is_cancelled = verdict.kind is FailureKind.CANCELLED
            self.state = CallState.CANCELLED if is_cancelled else CallState.FAILED
        for listener in self.listeners if not is_told else ():
            self.tell_end(listener)
        self.release()

    def release(self) -> None:
        """What it brought is no longer needed."""
        self.body, self.sync, self.constructor = b"", None, None
        forget(self.file)
        self.file = ""


def make_call_status(call: Call, plan: Plan, ahead: int) -> JobStatus:
    """What is known of a call now; `ahead` calls have to end before it can start."""
    world = call.attempt.world if call.attempt else None
    asked = call.asked.world
    return JobStatus(
        job_id=call.id,
        name=call.asked.name,
        engine=plan.engine,
        work=call.asked.name,
        phase=_PHASES[call.state],
        num_nodes=len(world.nodes) if world else asked.nodes,
        num_ranks=len(asked.ranks or ()) or asked.nodes * asked.procs,
        detach=True,
        created_at_s=call.created_at_s,
        ended_at_s=call.ended_at_s,
        conditions=_explain(call, ahead),
        ranks=tuple(_see(rank, call) for rank in make_ranks(world)) if world else (),
        verdict=call.verdict,
    )


def _explain(call: Call, ahead: int) -> tuple[Condition, ...]:
    if call.state is not CallState.QUEUED:
        return ()
    what = f"{ahead} call{'s' * (ahead > 1)} before it" if ahead else "it waits for its nodes"
    kind, reason = Phase.PENDING.value, names.REASON_QUEUED
    return (Condition(type=kind, reason=reason, message=what, since_s=call.created_at_s),)


def _see(rank: RankStatus, call: Call) -> RankStatus:
    outcome = call.attempt.outcomes.get(rank.rank) if call.attempt else None
    unheard = RankState.STOPPED if call.is_final else RankState.RUNNING
    state = outcome.state if outcome else unheard
    return replace(rank, state=state)


def read_call_logs(
    call: Call, folder: JobFolder, seen: Mapping[str, int]
) -> tuple[list[tuple[int, int, int]], bytes]:
    """New records of each rank, one after another: rank, node and length of each, and the bytes."""
    if call.attempt is None:
        return [], b""
    files, pieces = [], []
    for node in call.attempt.world.nodes:
        for rank in (*node.ranks, number_node(node.index)):
            try:
                with folder.log(call.attempt.number, rank).open("rb") as file:
                    file.seek(seen.get(str(rank), 0))
                    data = file.read()
            except FileNotFoundError:
                continue
            whole = data[: data.rfind(b"\n") + 1]
            files.append((rank, node.index, len(whole)))
            pieces.append(whole)
    return files, b"".join(pieces)
