"""Client side of one call: send it, follow it to its end, and resume it when a connection breaks.

A call has its id before it is sent. When a connection breaks, the client opens another one and resumes the
call. It sends the call again only to the same lead, and only if that lead never received it. Otherwise the
call might run twice. `Reply` has the results of the ranks and the end of the call.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

from windlass.client.compute.calls.call_requests import CallRequest
from windlass.client.compute.nodes.compute_connection import Connection
from windlass.client.jobs.job import load_error, make_failure
from windlass.client.terminal import print_notice, waiting_line
from windlass.errors import JobNotFound, NodeLost, ProtocolError, RemoteError, WaitTimeout
from windlass.wire import payloads
from windlass.wire.blocking_link import ConnectionBroken, Received
from windlass.wire.message import Handlers, Message
from windlass.wire.messages.calls import (
    AskCall,
    AttendCall,
    CallAccepted,
    CallEnded,
    CallForgotten,
    CallNotice,
    CallPrinted,
    CallQueued,
    CallResult,
    CallResults,
    CallStarted,
    CallUnknown,
    CallWaiting,
    EndCall,
    LeadEnding,
    RepeatCall,
    SetProfile,
)
from windlass.wire.messages.computes import CallAnswer, MakeObject, PayloadPart
from windlass.wire.payloads import forget
from windlass.wire.results import ResultHeader
from windlass.wire.states import CallState, RankState
from windlass.wire.status import Verdict

RankAnswer = CallAnswer | CallResult
_CHECK_EVERY_S = 2.0
# messages before the lead accepts a call, and messages that imply it did
_BEFORE_ACCEPTANCE = (RepeatCall, LeadEnding, CallUnknown)
_ACCEPTANCE = (CallAccepted, CallForgotten, CallResult, CallResults, CallEnded)
RETENTION_HINT = (
    "a compute keeps its last 200 calls, and 256 MiB of their results, while its node 0 lives"
)


@dataclass(slots=True)
class Reply:
    """Results of the ranks, and the end of the call."""

    results: dict[int, tuple[RankAnswer, list[memoryview]]] = field(default_factory=dict)
    state: CallState | None = None
    verdict: Verdict | None = None

    def value(self, rank: int) -> Any:
        segments = self.results[rank][1]
        if not segments:
            return None
        try:
            return payloads.unpack(segments)
        except Exception as error:
            raise RemoteError(
                f"rank {rank} returned a value that cannot be loaded here: {type(error).__name__}: {error}",
                hint="make its types importable here too, or return plain values",
            ) from error

    def error(self) -> BaseException | None:
        """Return the call's error, with its original type if that can be loaded here."""
        verdict = self.verdict
        if verdict is None:
            return None
        result = self.results.get(verdict.rank) if verdict.rank is not None else None
        if result is None or result[0].state != RankState.RAISED or result[0].error is None:
            return make_failure(verdict)
        answer, segments = result
        about = ResultHeader(
            rank=answer.rank,
            attempt=0,
            state=RankState.RAISED,
            at_s=answer.at_s,
            error=answer.error,
        )
        error = load_error(about, b"".join(segments[:1]))
        if isinstance(error, SystemExit):  # raising it would end this process too
            return make_failure(verdict)
        if hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"windlass: {verdict.message}")
        return error


def adapt_verdict(verdict: Verdict, call_id: str) -> Verdict:
    """Return a job's verdict as the verdict of a call.

    The suggested commands name the call. The attempt is 0, because a call is tried only once.
    """
    job_id = call_id.rpartition(".")[0]
    words = [call_id if word == job_id else word for word in verdict.next.split(" ")]
    return replace(verdict, attempt=0, next=" ".join(words))


class Home(Protocol):
    """Interface that a call needs from its compute."""

    @property
    def is_remote(self) -> bool: ...

    @property
    def spill(self) -> str: ...

    def take_connection(self, timeout_s: float | None) -> Connection:
        """Return a connection to the lead."""

    def return_connection(self, connection: Connection) -> None:
        """Keep a connection for the next call."""

    def notify(self, message: Message) -> None:
        """Send a message to the lead, if it is alive."""

    def report_wait(self, what: str) -> None:
        """Show the reason why a call waits, and replace missing nodes if possible."""


def _describe_queue(num_ahead: int, first: str) -> str:
    more = f", and {num_ahead - 1} more wait before this one" if num_ahead > 1 else ""
    return f"waiting for the call {first} to end{more}; `windlass cancel {first}` stops it"


class ClientCall:
    """One call in progress."""

    def __init__(
        self, home: Home, request: CallRequest, on_log: Callable[[int, bytes], None]
    ) -> None:
        self._home = home
        self._request = request
        self._connection: Connection | None = None
        self._lead = ""
        self._since = 0  # calls that the lead had accepted before this one
        self._file = ""
        self._has_resumed = False
        self._payloads: dict[str, bytearray] = {}
        self._waiting = ""  # reason why the call waits
        self._refusal = ""  # reason of the lead's last refusal
        self.reply = Reply()
        self._on_log = on_log

    @property
    def id(self) -> str:
        return self._request.id

    def send(self) -> None:
        """Send the request. If the connection breaks, `follow` sends it again."""
        self._take_connection(None)
        self._try_send()

    def resume(self) -> None:
        """Resume a call that was sent before, perhaps by another process."""
        connection = self._take_connection(None)
        self._since = 0
        connection.send(AttendCall(id=self._request.id))

    def _take_connection(self, timeout_s: float | None) -> Connection:
        connection = self._home.take_connection(timeout_s)
        if self._lead != connection.lead:
            self._since = connection.num_calls
        self._connection, self._lead = connection, connection.lead
        return connection

    def _try_send(self) -> None:
        """Send the request. If the connection breaks, the call resumes on the next connection."""
        try:
            self._send_request()
        except ConnectionBroken:
            self._drop_connection()

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send_request(self) -> None:
        request, connection = self._request, self._connection
        if connection is None:
            raise ConnectionBroken("there is no connection")
        sync = request.make_sync(request.has)
        if sync is not None:
            connection.send(sync[0], [sync[1]])
        if request.constructor is not None and request.must_make:
            sizes = [len(segment) for segment in request.constructor]
            connection.send(MakeObject(sizes=sizes), request.constructor)
        key = request.message.profile
        if key not in connection.profiles and request.profile is not None:
            connection.send(SetProfile(key=key, profile=request.profile))
            connection.profiles.add(key)
        sizes = [len(segment) for segment in request.segments]
        message = AskCall(id=request.id, profile=key, sizes=sizes)
        if sum(sizes) <= payloads.SPILL_BYTES:
            connection.send(message, request.segments)
        elif self._home.is_remote:
            connection.send_parts(request.id, request.segments)
            connection.send(message.replaced(payload=request.id))
        else:
            if not self._file or not os.path.exists(self._file):
                self._file = payloads.write_file(self._home.spill, request.segments)
            connection.send(message.replaced(file=self._file))

    def wait_for_acceptance(self) -> None:
        """Wait until the lead accepts the call, which then continues without this process."""
        while True:
            received = self._receive(None, is_waiting=False)
            if received is None or getattr(received.message, "id", "") != self._request.id:
                continue
            if isinstance(received.message, _BEFORE_ACCEPTANCE):
                self._handlers[type(received.message)](self, *received)
            elif isinstance(received.message, _ACCEPTANCE):
                # after a resume the lead keeps sending this call's messages on the connection
                self.release(is_broken=self._has_resumed)
                return

    # -- following -----------------------------------------------------------------------------

    def follow(self, *, wait_s: float | None = None) -> Reply:
        """Wait until the call ends.

        Raises WaitTimeout after `wait_s` seconds. The call then continues.
        """
        for _ in self.items(wait_s=wait_s):
            pass
        return self.reply

    def items(self, *, wait_s: float | None = None) -> Iterator[Any]:
        """Yield the items of a generator as they arrive, until the call ends."""
        deadline = None if wait_s is None else time.monotonic() + wait_s
        self._waiting, call_id = "", self._request.id
        while not self.reply.state:
            received = self._receive(deadline, is_waiting=bool(self._waiting))
            if received is None:
                self._home.report_wait(self._waiting)
                continue
            message, body = received
            if getattr(message, "id", call_id) != call_id:
                continue
            if isinstance(message, CallResult) and not message.state:
                yield self._take_item(message, body)
            elif (handle := self._handlers.get(type(message))) is not None:
                handle(self, message, body)
        self.release()

    def _receive(self, deadline: float | None, *, is_waiting: bool) -> Received | None:
        """Return the next message, reconnecting if needed. Return None every 2 s while the call waits."""
        while True:
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise WaitTimeout(
                    f"the call {self._request.id} is not done yet",
                    hint="the call is still running; wait again",
                )
            try:
                if self._connection is None:
                    raise ConnectionBroken("there is no connection")
                received = self._connection.receive(_CHECK_EVERY_S if is_waiting else left_s)
            except ConnectionBroken:
                self._reconnect(left_s)
                continue
            except ProtocolError as error:
                self._check_refusal(error)
                self._reconnect(left_s)
                continue
            if received is not None or is_waiting:
                return received

    def _check_refusal(self, error: ProtocolError) -> None:
        """Raise a refusal that the lead has repeated, because another attempt would fail too."""
        if error.message == self._refusal:
            self._drop_connection()
            raise error
        self._refusal = error.message

    def _reconnect(self, timeout_s: float | None) -> None:
        self._drop_connection()
        before, connection = self._lead, self._take_connection(timeout_s)
        if before and self._lead != before:
            raise self._lost()
        self._payloads.clear()
        self._has_resumed = True
        try:
            connection.send(AttendCall(id=self._request.id, since=self._since))
        except ConnectionBroken:
            self._drop_connection()

    def _forget_lead_name(self, _message: LeadEnding, _body: bytes) -> None:
        """Allow another lead, because this one is shutting down and did not accept the call."""
        self._lead = ""

    def _check_lead(self, _message: CallUnknown, _body: bytes) -> None:
        """Send the call again, because the lead never received all of it."""
        if self._connection is None or not self._request.segments:
            raise self._lost()  # another process sent the call, so its arguments are unknown
        self._try_send()

    def _lost(self) -> NodeLost:
        return NodeLost(
            f"the call {self._request.id} was lost together with node 0",
            hint="call again; another node 0 is running or starting",
        )

    def _raise_forgotten(self, _message: CallForgotten, _body: bytes) -> None:
        forget(self._file)
        self.release()
        raise JobNotFound(
            f"the call {self._request.id} was accepted, but its outcome is no longer known",
            hint=f"it may have run, so it is not repeated; {RETENTION_HINT}",
        )

    def _send_again(self, message: RepeatCall, _body: bytes) -> None:
        """Send the call again, with the code or the object that the lead lacks.

        The code was sent to an earlier lead, or another client has replaced it since.
        """
        self._request.has = message.has
        self._request.must_make |= message.make
        if message.make and self._request.was_made and self._request.profile is not None:
            name = self._request.profile.name
            print_notice(f"{name}: the processes with the object have ended; creating it again")
        if self._request.must_make and self._request.constructor is None:
            raise NodeLost(
                "the object was lost when its processes ended",
                hint="create it again: .to(compute)",
            )
        self._try_send()

    def _take_results(self, message: CallResults, body: bytes) -> None:
        """Store the small answers of several ranks, which share one body."""
        start = 0
        for answer in message.answers:
            end = start + sum(answer.sizes)
            self.reply.results[answer.rank] = (answer, self._segments(answer, body[start:end]))
            start = end
        if message.ends:
            self.reply.state = CallState.RETURNED

    def _take_result(self, message: CallResult, body: bytes) -> None:
        self.reply.results[message.rank] = (message, self._segments(message, body))

    def _take_item(self, message: CallResult, body: bytes) -> Any:
        segments = self._segments(message, body)
        if not self._home.is_remote:
            forget(message.file)  # already mapped, and this process is its only reader
        return payloads.unpack(segments)

    def _take_printed(self, message: CallPrinted, body: bytes) -> None:
        self._on_log(message.rank, bytes(body))

    def _print_line(self, message: CallNotice, _body: bytes) -> None:
        print_notice(message.line)

    def _take_part(self, message: PayloadPart, body: bytes) -> None:
        self._payloads.setdefault(message.payload, bytearray()).extend(body)

    def _take_queued(self, message: CallQueued, _body: bytes) -> None:
        """Record what the call waits for. `items` shows it only if the wait is long."""
        self._waiting = _describe_queue(message.ahead, message.first)

    def _take_waiting(self, message: CallWaiting, _body: bytes) -> None:
        self._waiting = message.what
        self._home.report_wait(self._waiting)

    def _take_started(self, _message: CallStarted, _body: bytes) -> None:
        self._waiting = ""
        waiting_line.end()

    def _segments(self, answer: RankAnswer, body: Any) -> list[memoryview]:
        if answer.payload:
            body = self._payloads.pop(answer.payload, bytearray())
        elif answer.file and not self._home.is_remote:  # a remote path is on another machine
            body = payloads.map_file(answer.file)
        return payloads.cut(body, answer.sizes)

    def _end(self, message: CallEnded, _body: bytes) -> None:
        self.reply.state = message.state
        if message.verdict is not None:
            self.reply.verdict = adapt_verdict(message.verdict, self.id)

    def release(self, *, is_broken: bool = False) -> None:
        """Return the connection for another call, or close it if it is mid-answer."""
        waiting_line.end()
        if self._connection is not None:
            if is_broken:
                self._connection.close()
            else:
                self._home.return_connection(self._connection)
            self._connection = None

    def cancel(self, why: str, *, interrupt: bool = False) -> None:
        """Ask the lead to end the call, which then ends like any other.

        With `interrupt`, the ranks receive it as Ctrl-C.
        """
        self._home.notify(EndCall(id=self._request.id, why=why, interrupt=interrupt))

    # stored on the class, so that each call does not build it
    _handlers: ClassVar[Handlers] = {
        CallResults: _take_results,
        CallResult: _take_result,
        CallPrinted: _take_printed,
        PayloadPart: _take_part,
        CallQueued: _take_queued,
        CallWaiting: _take_waiting,
        CallStarted: _take_started,
        CallNotice: _print_line,
        RepeatCall: _send_again,
        LeadEnding: _forget_lead_name,
        CallUnknown: _check_lead,
        CallForgotten: _raise_forgotten,
        CallEnded: _end,
        CallAccepted: lambda _call, _message, _body: None,
    }
