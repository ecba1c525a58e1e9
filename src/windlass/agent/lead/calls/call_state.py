"""State of one call in the lead: the request, its listeners, the answers of ranks, and the verdict.

This module also builds the status of a call, in the form of a job status, and reads the output of its ranks.
It sends no orders. `agent.lead.calls.call_queue` decides which calls are kept, and for how long.
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
from windlass.errors import count_noun
from windlass.plan.plan import Plan
from windlass.wire.job_folder import JobFolder
from windlass.wire.log_lines import pseudo_rank
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


RankMessage = TypeVar("RankMessage", CallAnswer, CallItem)
_PHASES = {
    CallState.QUEUED: Phase.PENDING,
    CallState.RUNNING: Phase.RUNNING,
    CallState.RETURNED: Phase.SUCCEEDED,
    CallState.FAILED: Phase.FAILED,
    CallState.CANCELLED: Phase.CANCELLED,
}


@dataclass(slots=True)
class RankAnswer(Generic[RankMessage]):
    """Answer or yielded item of one rank. The payload is in memory or in the file that the message names."""

    message: RankMessage
    body: bytes = b""

    @property
    def num_bytes(self) -> int:
        return sum(self.message.sizes)

    @property
    def file(self) -> str:
        return self.message.file


class CallListener:
    """Client that gets the messages of a call as they occur, in order."""

    def __init__(self, link: Link, *, is_remote: bool) -> None:
        self.link = link
        self._is_remote = is_remote
        self._waiting: list[tuple[Message, bytes, str]] = []
        self._task: asyncio.Task[None] | None = None

    def send(self, message: Message, body: bytes = b"", file: str = "") -> None:
        """Send a message. A payload in a file is sent first, in parts, to clients on other machines."""
        if self._waiting or (file and self._is_remote):
            self._waiting.append((message, body, file))
            if self._task is None or self._task.done():
                self._task = asyncio.ensure_future(self._send())
        else:
            self.link.send(message.replaced(file=file) if file else message, body)

    async def catch_up(self) -> None:
        """Wait until all messages are sent or the client has disconnected."""
        if self._task is not None:
            await asyncio.wait({self._task})
        with contextlib.suppress(OSError):
            await self.link.drain(timeout_s=_SLOW_S)

    async def _send(self) -> None:
        try:
            while self._waiting:
                message, body, file = self._waiting[0]
                if file:
                    # another listener may have read and deleted the file of an item
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
    """One call, from its request to its last answer."""

    id: str
    profile: CallProfile
    sizes: Sequence[int]
    body: bytes
    shape: str  # shape of the worlds that can run it
    file: str = ""
    sync: tuple[SyncCode, bytes] | None = None
    constructor: tuple[MakeObject, bytes] | None = None
    created_at_s: float = field(default_factory=time.time)
    ended_at_s: float | None = None
    state: CallState = CallState.QUEUED
    attempt: Attempt | None = None
    unreached: set[int] = field(
        default_factory=set
    )  # ranks that exited before the call reached them
    answers: dict[int, RankAnswer[CallAnswer]] = field(default_factory=dict)
    items: list[RankAnswer[CallItem]] = field(default_factory=list)
    item_bytes: int = 0
    unread: list[str] = field(default_factory=list)  # files of items that are no longer kept
    # small answers, sent together at the end
    unsent: list[RankAnswer[CallAnswer]] = field(default_factory=list)
    verdict: Verdict | None = None
    is_wait_reported: bool = False  # clients know that it waits, so its start is reported too
    stop: Verdict | None = None  # set when it is cancelled or times out
    stop_signal: int = signal.SIGTERM  # signal for its ranks when it is stopped
    listeners: list[CallListener] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    timer: asyncio.TimerHandle | None = None  # fires at the call's time limit
    pacing: asyncio.Future[None] | None = None  # flow control of a stream
    on_trouble: Callable[[Call], None] | None = None  # set for a call that bypassed the queue

    @property
    def is_final(self) -> bool:
        return self.state.is_final

    def start(self, number: int, world: Plan) -> None:
        self.state = CallState.RUNNING
        self.attempt = Attempt(number, world)

    def may_start_again(self, world: World) -> bool:
        """Return whether all ranks were gone before the call reached them, and can be replaced.

        Ranks forked for this call are not replaced, because new ones would fail in the same way. Ranks that
        held an object are not replaced for a detached call, because only a client could recreate the object.
        """
        is_unreached = self.attempt is not None and len(self.unreached) == self.attempt.num_ranks
        can_make = not world.instance or not self.profile.detach
        return is_unreached and can_make and self.stop is None and world.made_for != self.id

    def start_again(self) -> None:
        """Reset the call to its state before the first start."""
        self.state, self.attempt = CallState.QUEUED, None
        self.unreached.clear()
        self.over.clear()
        self.on_trouble = None  # the runner waits for it now

    def yielded(self, answer: RankAnswer[CallItem]) -> None:
        """Keep an item that a rank yielded. Clients that connect later get the last items, up to 16 MiB."""
        self.items.append(answer)
        self.item_bytes += answer.num_bytes
        while self.item_bytes > _KEPT_ITEM_BYTES and len(self.items) > 1:
            oldest = self.items.pop(0)
            self.item_bytes -= oldest.num_bytes
            if oldest.file:  # kept for a slow listener, which removes the file
                self.unread = [path for path in (*self.unread, oldest.file) if exists(path)]

    def answered(self, answer: RankAnswer[CallAnswer]) -> None:
        """Record the answer of a rank. The first failure and the last answer end the call."""
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
        """Record how a rank ended its part of the call."""
        if self.attempt is not None:
            self.attempt.add(outcome, exited=True)
            if outcome.is_failure or self.attempt.is_done:
                self.end()

    def lose_rank(self, outcome: Outcome, *, given: str, answered: str) -> None:
        """Record the loss of a rank's process.

        `given` is the last call that the rank received, and `answered` the last one that it answered. The
        loss counts if this call runs on the rank's world and the rank has not answered it. That includes a
        rank that was gone before the call arrived.
        """
        attempt = self.attempt
        if attempt is None or outcome.attempt != attempt.number or answered == self.id:
            return
        if given != self.id:
            self.unreached.add(outcome.rank)
        self.add(outcome)

    def lose_node(self, index: int, why: str) -> None:
        """Record that a node is lost or does not have the ranks of this call."""
        if self.attempt is not None:
            for outcome in list(self.attempt.lose_node(index, why)):
                self.add(outcome)

    def end(self) -> None:
        """End the wait for answers, because the call is complete or must stop."""
        self.over.set()
        if self.on_trouble is not None and not self.has_returned:
            self.on_trouble(self)

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def send(self, message: Message, body: bytes = b"") -> None:
        for listener in self.listeners:
            listener.send(message, body)

    @property
    def has_returned(self) -> bool:
        """True if all ranks have returned and none failed."""
        attempt = self.attempt
        return attempt is not None and attempt.is_done and not attempt.has_failure

    def send_answer(
        self, listener: CallListener, answer: RankAnswer[CallAnswer] | RankAnswer[CallItem]
    ) -> None:
        """Send a listener the answer of a rank or an item that it yielded."""
        message = answer.message
        result = CallResult(id=self.id, rank=message.rank, sizes=message.sizes, at_s=message.at_s)
        if isinstance(message, CallAnswer):
            result = result.replaced(
                state=message.state, error=message.error, exit_code=message.exit_code
            )
        listener.send(result, answer.body, answer.file)

    def pass_on(self, answer: RankAnswer[CallAnswer]) -> None:
        """Send an answer to all listeners. Small answers are sent together at the end."""
        if answer.file or len(answer.body) > _SMALL_BYTES:
            for listener in self.listeners:
                self.send_answer(listener, answer)
        else:
            self.unsent.append(answer)

    def report_waiting(self, message: Message) -> None:
        """Notify all listeners what the call is waiting for."""
        self.is_wait_reported = True
        self.send(message)

    def send_unsent(self, *, ends: bool = False) -> None:
        """Send the collected small answers in one frame, which also ends a successful call."""
        unsent, self.unsent = self.unsent, []
        if unsent or ends:
            answers = [answer.message for answer in unsent]
            results = CallResults(id=self.id, ends=ends, answers=answers)
            self.send(results, b"".join([answer.body for answer in unsent]))

    def send_end(self, listener: CallListener) -> None:
        listener.send(CallEnded(id=self.id, state=self.state, verdict=self.verdict))

    def settle(self, verdict: Verdict | None, *, is_reported: bool) -> None:
        """Set the result, report it to listeners unless `is_reported`, and release the payload."""
        self.verdict, self.ended_at_s = verdict, time.time()
        self.send_unsent()
        if verdict is None:
            self.state = CallState.RETURNED
        else:
            is_cancelled = verdict.kind is FailureKind.CANCELLED
            self.state = CallState.CANCELLED if is_cancelled else CallState.FAILED
        for listener in self.listeners if not is_reported else ():
            self.send_end(listener)
        self.release()

    def release(self) -> None:
        """Release the payload, which is no longer needed."""
        self.body, self.sync, self.constructor = b"", None, None
        forget(self.file)
        self.file = ""


def make_call_status(call: Call, plan: Plan, ahead: int) -> JobStatus:
    """Return the status of a call. `ahead` is the number of calls that must end before it can start."""
    world = call.attempt.world if call.attempt else None
    requested = call.profile.world
    return JobStatus(
        job_id=call.id,
        name=call.profile.name,
        engine=plan.engine,
        work=call.profile.name,
        phase=_PHASES[call.state],
        num_nodes=len(world.nodes) if world else requested.nodes,
        num_ranks=len(requested.ranks or ()) or requested.nodes * requested.procs,
        detach=True,
        created_at_s=call.created_at_s,
        ended_at_s=call.ended_at_s,
        conditions=_explain(call, ahead),
        ranks=tuple(_set_state(rank, call) for rank in make_ranks(world)) if world else (),
        verdict=call.verdict,
    )


def _explain(call: Call, ahead: int) -> tuple[Condition, ...]:
    if call.state is not CallState.QUEUED:
        return ()
    what = f"{count_noun(ahead, 'call')} before it" if ahead else "it is waiting for its nodes"
    kind, reason = Phase.PENDING.value, names.REASON_QUEUED
    return (Condition(type=kind, reason=reason, message=what, since_s=call.created_at_s),)


def _set_state(rank: RankStatus, call: Call) -> RankStatus:
    outcome = call.attempt.outcomes.get(rank.rank) if call.attempt else None
    default = RankState.STOPPED if call.is_final else RankState.RUNNING
    state = outcome.state if outcome else default
    return replace(rank, state=state)


def read_call_logs(
    call: Call, folder: JobFolder, seen: Mapping[str, int]
) -> tuple[list[tuple[int, int, int]], bytes]:
    """Return the unread log lines of all ranks.

    The result is a list of (rank, node, length) and the concatenated bytes.
    """
    if call.attempt is None:
        return [], b""
    files, pieces = [], []
    for node in call.attempt.world.nodes:
        for rank in (*node.ranks, pseudo_rank(node.index)):
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
