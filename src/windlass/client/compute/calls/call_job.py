"""Call as a job: the handle that `submit` returns. It sends its requests to the compute's lead.

`attach_call` finds a call by its id from any process. `CallLogs` reads the output of the call's ranks, either
all at once or as it arrives.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from windlass.client.compute.calls.call_requests import CallRequest
from windlass.client.compute.calls.client_call import (
    RETENTION_HINT,
    ClientCall,
    Reply,
    adapt_verdict,
)
from windlass.client.compute.nodes.compute_connection import expect
from windlass.client.compute.nodes.live_nodes import LiveNodes
from windlass.client.jobs.job import Job
from windlass.engines.protocol import JobRef
from windlass.errors import JobNotFound, NodeLost, RemoteError
from windlass.wire.blocking_link import Received
from windlass.wire.log_files import RankLog
from windlass.wire.log_lines import LogLine, LogQuery
from windlass.wire.message import Message
from windlass.wire.messages.calls import (
    AskCall,
    AskCallLogs,
    AskCallStatus,
    CallForgotten,
    CallLogsReply,
    CallStatusReply,
    CallUnknown,
    EndCall,
)
from windlass.wire.results import ResultHeader, describe_value
from windlass.wire.states import RankState
from windlass.wire.status import JobStatus, Verdict

_SKEW_S = 1.0  # tolerated difference between the clocks of nodes


class CallLogs:
    """Log reader of a call, with the interface of an engine's log readers.

    `ask` returns the data that was written after the given offsets.
    """

    def __init__(
        self, ask: Callable[[Mapping[str, int]], tuple[CallLogsReply, bytes]], query: LogQuery
    ) -> None:
        self._ask = ask
        self._query = query
        self._logs: dict[int, RankLog] = {}

    def read_all(self) -> Iterator[LogLine]:
        """Yield all lines written so far."""
        yield from self._order([*self.read_new(), *self.read_rest()])

    def read_new(self) -> list[LogLine]:
        """Return the lines that arrived since the previous call."""
        answer, data = self._ask({str(rank): log.offset for rank, log in self._logs.items()})
        body = memoryview(data)
        lines: list[LogLine] = []
        for rank, node, size in answer.files:
            # the path is never opened: the lead sends the lines
            log = self._logs.setdefault(rank, RankLog(Path(), node, rank, 0))
            lines += log.feed(bytes(body[:size]))
            body = body[size:]
        return self._order(lines)

    def read_rest(self) -> list[LogLine]:
        """Return unfinished last lines, once the call has ended."""
        return self._order([line for log in self._logs.values() for line in log.read_rest()])

    def _order(self, lines: list[LogLine]) -> list[LogLine]:
        return sorted((line for line in lines if self._matches(line)), key=lambda line: line.at_s)

    def _matches(self, line: LogLine) -> bool:
        query = self._query
        is_chosen = query.rank in (None, line.rank) and query.node in (None, line.node)
        return is_chosen and query.matches(line)


class CallJob(Job):
    """A call that is running, waiting or ended recently."""

    def __init__(self, nodes: LiveNodes, call_id: str) -> None:
        if nodes.ref is None:
            raise JobNotFound(f"{nodes.name} has no nodes")
        place = nodes.ref.place
        super().__init__(nodes.wanted.engine, JobRef(nodes.ref.engine, call_id, place))
        self._nodes = nodes
        self._reply: Reply | None = None

    def _ask(self, question: Message) -> Received:
        received = self._nodes.ask(question, timeout_s=30.0)
        if isinstance(received.message, CallForgotten):
            raise JobNotFound(f"the call {self.id} is no longer known", hint=RETENTION_HINT)
        if isinstance(received.message, CallUnknown):
            raise JobNotFound(f"node 0 never received the call {self.id}", hint=RETENTION_HINT)
        return received

    def status(self) -> JobStatus:
        """Return the current status of the call."""
        status = expect(CallStatusReply, self._ask(AskCallStatus(id=self.id))).status
        verdict = status.verdict and adapt_verdict(status.verdict, self.id)
        return replace(status, verdict=verdict)

    def wait(
        self, timeout_s: float | None = None, *, say: Callable[[float], None] | None = None
    ) -> JobStatus:
        """Wait until the call has ended. `say` is ignored: only jobs report a slow start."""
        del say
        self._read(timeout_s)
        return self.status()

    def _read(self, timeout_s: float | None) -> Reply:
        if self._reply is None:
            request = CallRequest(AskCall(id=self.id, profile=""), (), None, lambda _has: None)
            calling = ClientCall(self._nodes, request, lambda _rank, _data: None)
            calling.resume()
            try:
                self._reply = calling.follow(wait_s=timeout_s)
            finally:
                calling.release(is_broken=True)  # a connection still held is mid-conversation
        return self._reply

    def results(self, *, timeout_s: float | None = None) -> list[Any]:
        """Return every rank's value in rank order, or raise what a rank raised."""
        reply = self._read(timeout_s)
        error = reply.error()
        if error is not None:
            raise error
        return [reply.value(rank) for rank in sorted(reply.results)]

    def exception(self, *, timeout_s: float | None = None) -> BaseException | None:
        """Return the call's error, or None if it succeeded."""
        try:
            return self._read(timeout_s).error()
        except NodeLost as error:
            return error

    def verdict(self) -> Verdict | None:
        """Return the rank that failed first and the cause, or None if no rank has failed."""
        return self.status().verdict

    def cancel(self, *, now: bool = False, why: str = "", interrupt: bool = False) -> None:
        """End the call. The compute stays up."""
        self._ask(EndCall(id=self.id, now=now, why=why, interrupt=interrupt))

    def reader(self, query: LogQuery) -> CallLogs:
        """Return a reader of the log lines of the call's ranks."""
        # kept ranks write all their calls to one log: older lines belong to earlier calls
        first_s = max(query.since_s or 0.0, self.status().created_at_s - _SKEW_S)
        query = replace(query, since_s=first_s)
        return CallLogs(self._ask_logs, query)

    def _ask_logs(self, seen: Mapping[str, int]) -> tuple[CallLogsReply, bytes]:
        received = self._ask(AskCallLogs(id=self.id, seen=seen))
        return expect(CallLogsReply, received), bytes(received.body)

    def outcomes(self) -> list[ResultHeader | None]:
        """Return each rank's outcome, or None for ranks without one. Unpickles values to display them."""
        reply = self._read(None)
        return [
            self._describe(reply, rank) if rank in reply.results else None
            for rank in range(self.status().num_ranks)
        ]

    @staticmethod
    def _describe(reply: Reply, rank: int) -> ResultHeader:
        answer = reply.results[rank][0]
        state = answer.state or RankState.RETURNED
        header = ResultHeader(rank=rank, attempt=0, state=state, at_s=answer.at_s)
        if answer.state != RankState.RETURNED:
            return replace(header, error=answer.error)
        try:
            text, is_json, plain = describe_value(reply.value(rank))
        except RemoteError as error:
            text, is_json, plain = f"<{error.message}>", False, None
        return replace(header, repr=text, is_json=is_json, json=plain)

    def remove(self) -> None:
        """Do nothing: the lead forgets old calls by itself."""

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Do nothing: a call needs no lease."""
        yield


def attach_call(job: Job, call_id: str) -> CallJob:
    """Return the call with this id on the compute whose job is `job`."""
    from windlass.client.compute.nodes.compute_handle import Compute

    name = job.status().name
    return CallJob(Compute.at(job.ref, name).nodes(), call_id)
