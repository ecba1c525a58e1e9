"""One call, from the client's side: said, followed to its end, and taken up again when a line breaks.

A call has an id from before it is said. A line that breaks is replaced and the call attended to; one that its
lead never heard of is said again, but never to another lead than the one it was said to, nor to one that has
forgotten it: it might run twice.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from windlass import names, records
from windlass.client.compute.connection import Connection, LineBroke
from windlass.client.compute.engine_choice import say
from windlass.client.compute.wait_line import waiting_line
from windlass.client.jobs.load_values import load_error, make_failure
from windlass.errors import JobNotFound, NodeLost, ProtocolError, RemoteError, WaitTimeout
from windlass.wire import payloads
from windlass.wire.frames import Frame, Header
from windlass.wire.payloads import Segment, forget
from windlass.wire.results import ErrorInfo, ResultHeader
from windlass.wire.status import Verdict

_LOOK_S = 2.0
KEEPS = "a compute keeps its last 200 calls, and 256 MiB of their results, while its node 0 lives"


class Home(Protocol):
    """What a call needs of its compute."""

    is_remote: bool
    spill: str

    def take_talk(self, timeout_s: float | None) -> Connection:
        """A connection to the lead."""

    def give_talk(self, connection: Connection) -> None:
        """It is free again."""

    def tell(self, what: dict[str, Any]) -> None:
        """Say something to the lead, if it lives."""

    def look_after(self, what: str) -> None:
        """A call waits: do what can be done about it, and say what it is."""


@dataclass(slots=True)
class CallRequest:
    """What is said: the call's header, its payload, and what goes ahead of it."""

    header: dict[str, Any]
    segments: Sequence[Segment]
    profile: dict[str, Any]  # what it has in common with others: said once a line
    make_sync: Callable[[str], tuple[dict[str, Any], bytes] | None]
    has: str = ""  # the digest that the lead was last known to have
    constructor: Sequence[Segment] | None = None
    must_make: bool = False
    was_made: bool = False  # by an earlier call: what it held is lost if it must be made again

    @property
    def id(self) -> str:
        return str(self.header["id"])


@dataclass(slots=True)
class Reply:
    """What came back."""

    results: dict[int, tuple[Header, list[memoryview]]] = field(default_factory=dict)
    state: str = ""
    verdict: Verdict | None = None

    def value(self, rank: int) -> Any:
        segments = self.results[rank][1]
        if not segments:
            return None
        try:
            return payloads.unpack(segments)
        except Exception as error:
            raise RemoteError(
                f"rank {rank} returned what cannot be rebuilt here: {type(error).__name__}: {error}",
                hint="import what it is made of here too, or return plain values",
            ) from error

    def error(self) -> BaseException | None:
        """What went wrong, of its own type where that can be rebuilt."""
        verdict = self.verdict
        if verdict is None:
            return None
        found = self.results.get(verdict.rank) if verdict.rank is not None else None
        if found is None or found[0].get("state") != "raised":
            return make_failure(verdict)
        header, segments = found
        info = records.read(ErrorInfo, header["error"])
        about = ResultHeader(
            rank=verdict.rank or 0, attempt=0, state="raised", at_s=header["at_s"], error=info
        )
        error = load_error(about, b"".join(segments[:1]))
        if isinstance(error, SystemExit):  # which would end this process as well
            return make_failure(verdict)
        if hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"windlass: {verdict.message}")
        return error


def _describe_queue(num_ahead: int, first: str) -> str:
    more = f", and {num_ahead - 1} more wait before this one" if num_ahead > 1 else ""
    return f"waiting for the call {first} to end{more}; windlass cancel {first} ends it"


def of_call(verdict: Verdict, call_id: str) -> Verdict:
    """The verdict on a call: what to type next is said of the call, which is tried once."""
    job_id = call_id.rpartition(".")[0]
    words = [call_id if word == job_id else word for word in verdict.next.split(" ")]
    return replace(verdict, attempt=0, next=" ".join(words))


class ClientCall:
    """One call under way."""

    def __init__(
        self, home: Home, request: CallRequest, on_log: Callable[[int, bytes], None]
    ) -> None:
        self._home = home
        self._request = request
        self._on_log = on_log
        self._connection: Connection | None = None
        self._lead = ""
        self._since = 0  # so many calls that lead had taken before it can have taken this one
        self._file = ""
        self._has_attended = False
        self._payloads: dict[str, bytearray] = {}
        self.reply = Reply()

    @property
    def id(self) -> str:
        return self._request.id

    def say(self, *, timeout_s: float | None = None) -> None:
        """Ask for it; over a line that breaks meanwhile it is said again by who follows it."""
        connection = self._take_talk(timeout_s)
        try:
            self._say()
        except LineBroke:
            connection.close()
            self._connection = None

    def attend(self, *, timeout_s: float | None = None) -> None:
        """Take up one that was asked for before, perhaps by another process."""
        connection = self._take_talk(timeout_s)
        self._since = 0
        connection.send({"type": "attend", "id": self._request.id})

    def _take_talk(self, timeout_s: float | None) -> Connection:
        connection = self._home.take_talk(timeout_s)
        if self._lead != connection.lead:
            self._since = connection.num_calls
        self._connection, self._lead = connection, connection.lead
        return connection

    def _say(self) -> None:
        request, connection = self._request, self._connection
        if connection is None:
            raise LineBroke("there is no line")
        sync = request.make_sync(request.has)
        if sync is not None:
            connection.send(sync[0], [sync[1]])
        if request.constructor is not None and request.must_make:
            sizes = [len(segment) for segment in request.constructor]
            connection.send({"type": "make", "sizes": sizes}, request.constructor)
        header = request.header
        key = header["profile"]
        if key not in connection.profiles:
            connection.send({"type": "profile", "key": key, "profile": request.profile})
            connection.profiles.add(key)
        header["sizes"] = [len(segment) for segment in request.segments]
        if sum(header["sizes"]) <= payloads.SPILL_BYTES:
            connection.send(header, request.segments)
        elif self._home.is_remote:
            connection.send_parts(request.id, request.segments)
            connection.send({**header, "payload": request.id})
        else:
            if not self._file or not os.path.exists(self._file):
                self._file = payloads.write_file(self._home.spill, request.segments)
            connection.send({**header, "file": self._file})

    def wait_for_acceptance(self) -> None:
        """Until the lead has taken it: it goes on without us from then on."""
        while True:
            frame = self._hear(None, is_waiting=False)
            if frame is None or frame.header.get("id") != self._request.id:
                continue
            if frame.type == "again":
                self._say_again(frame)
            elif frame.type == "leaving":
                self._lead = ""
            elif frame.type == "unknown":
                self._check_lead()
            elif frame.type in ("accepted", "forgotten", "result", "results", "done"):
                self.let_go(
                    is_broken=self._has_attended
                )  # where its lead would go on telling of it
                return

    # -- following -----------------------------------------------------------------------------

    def follow(self, *, wait_s: float | None = None) -> Reply:
        """Until it has ended; WaitTimeout when that takes longer than `wait_s`, and it goes on."""
        for _ in self.items(wait_s=wait_s):
            pass
        return self.reply

    def items(self, *, wait_s: float | None = None) -> Iterator[Any]:
        """What a generator yields, as it comes, until the call has ended."""
        deadline = None if wait_s is None else time.monotonic() + wait_s
        waiting = ""
        while True:
            frame = self._hear(deadline, is_waiting=bool(waiting))
            if frame is None:
                self._home.look_after(waiting)
                continue
            header, kind = frame.header, frame.type
            if header.get("id") != self._request.id and kind != names.PART_FRAME:
                continue
            if kind == "results":
                self._take_results(header, frame.body)
                if header["ends"]:
                    self.reply.state = "returned"
                    self.let_go()
                    return
            elif kind == "log":
                self._on_log(header["rank"], frame.body)
            elif kind == "result":  # one that is large, or a thing that was yielded
                segments = self._segments(header, frame.body)
                if "state" not in header:
                    if not self._home.is_remote:
                        forget(header.get("file", ""))  # it is mapped, and nobody else wants it
                    yield payloads.unpack(segments)
                else:
                    self.reply.results[header["rank"]] = (header, segments)
            elif kind == names.PART_FRAME:
                self._payloads.setdefault(header["payload"], bytearray()).extend(frame.body)
            elif kind == "queued":  # most often for a moment: said only if it lasts
                waiting = _describe_queue(header["ahead"], header["first"])
            elif kind == "waiting":
                waiting = header["what"]
                self._home.look_after(waiting)
            elif kind == "started":
                waiting = ""
                waiting_line.end()
            elif kind == "said":
                say(header["line"])
            elif kind == "again":
                self._say_again(frame)
            elif kind == "leaving":  # it did not take the call, and is about to hang up
                self._lead = ""
            elif kind == "unknown":
                self._check_lead()
            elif kind == "forgotten":
                raise self._forgotten()
            elif kind == "done":
                self._end(frame)
                return

    def _hear(self, deadline: float | None, *, is_waiting: bool) -> Frame | None:
        """The next frame, over another line if this one breaks; None now and then while it waits."""
        while True:
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise WaitTimeout(
                    f"the call {self._request.id} is not done yet", hint="it goes on; wait again"
                )
            try:
                if self._connection is None:
                    raise LineBroke("there is no line")
                frame = self._connection.receive(_LOOK_S if is_waiting else left_s)
            except (LineBroke, ProtocolError):
                self._reconnect(left_s)
                continue
            if frame is not None or is_waiting:
                return frame

    def _reconnect(self, timeout_s: float | None) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        before, connection = self._lead, self._take_talk(timeout_s)
        if before and self._lead != before:
            raise self._lost()
        self._payloads.clear()
        self._has_attended = True
        connection.send({"type": "attend", "id": self._request.id, "since": self._since})

    def _check_lead(self) -> None:
        """The lead that answers never heard of it: it was not said whole."""
        if self._connection is None or not self._request.segments:
            raise self._lost()  # or it was not said from here, and nobody can say it again
        self._say()

    def _lost(self) -> NodeLost:
        return NodeLost(
            f"node 0 was lost during the call {self._request.id}, and with it the call",
            hint="call again: another node 0 is there, or on its way",
        )

    def _forgotten(self) -> JobNotFound:
        forget(self._file)
        self.let_go()
        return JobNotFound(
            f"the call {self._request.id} was taken, and how it ended is not known any more",
            hint=f"it may have run, and is not repeated; {KEEPS}",
        )

    def _say_again(self, frame: Frame) -> None:
        """It lacks something that was sent before: to another lead, or by another client since."""
        self._request.has = str(frame.header.get("has") or "")
        self._request.must_make |= bool(frame.header.get("make"))
        if frame.header.get("make") and self._request.was_made:
            say(
                f"{self._request.profile['name']}: the processes that held it ended; it is made anew"
            )
        if self._request.must_make and self._request.constructor is None:
            raise NodeLost(
                "the object is gone with the processes that held it",
                hint="make it anew: .to(compute) again",
            )
        self._say()

    def _take_results(self, header: Header, body: bytes) -> None:
        """Small answers of several ranks, one after another."""
        start = 0
        for said in header["answers"]:
            end = start + sum(said["sizes"])
            self.reply.results[said["rank"]] = (said, self._segments(said, body[start:end]))
            start = end

    def _segments(self, header: Header, body: Any) -> list[memoryview]:
        if header.get("payload"):
            body = self._payloads.pop(header["payload"], bytearray())
        elif header.get("file") and not self._home.is_remote:  # else a path of another machine
            body = payloads.map_file(header["file"])
        elif len(header["sizes"]) > 1:
            body = bytearray(body)  # so that arrays which come back can be written to
        return payloads.cut(body, header["sizes"])

    def _end(self, frame: Frame) -> None:
        header = frame.header
        self.reply.state = header["state"]
        if header["verdict"] is not None:
            self.reply.verdict = of_call(records.read(Verdict, header["verdict"]), self.id)
        self.let_go()

    def let_go(self, *, is_broken: bool = False) -> None:
        """The line is free for another call; one in the middle of a story is not."""
        waiting_line.end()
        if self._connection is not None:
            if is_broken:
                self._connection.close()
            else:
                self._home.give_talk(self._connection)
            self._connection = None

    def cancel(self, why: str, *, interrupt: bool = False) -> None:
        """End it; its end is heard as any other. `interrupt`: its ranks hear it as Ctrl-C."""
        order = {"type": "end_call", "id": self._request.id, "why": why, "interrupt": interrupt}
        self._home.tell(order)
