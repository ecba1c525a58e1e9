"""Connections of a client to the lead of a compute, one per call in flight. They are reused by later calls.

`windlass.wire.blocking_link` sends and receives messages. `windlass.client.compute.calls.client_call`
decides what a call sends.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from typing import TypeVar

from windlass import names
from windlass.engines.protocol import ComputeEngine, JobRef
from windlass.errors import ProtocolError, WindlassError
from windlass.wire.blocking_link import BlockingLink, Received, Stream, Unanswered
from windlass.wire.frames import make_hello
from windlass.wire.message import Message
from windlass.wire.messages.calls import COMPUTE_LEAD_TO_CLIENT, AskInfo, ComputeInfo
from windlass.wire.messages.computes import PayloadPart
from windlass.wire.payloads import Segment

_HELLO_S = 10.0
_PING_S = 5.0
_NOTIFY_TIMEOUT_S = 5.0
_FRESH_S = 1.0  # a connection that was used within this time counts as alive

M = TypeVar("M", bound=Message)

_of_parent: list[Connection] = []  # opened before this process was forked: never closed here


class Connection(BlockingLink):
    """Connection that has completed its handshake."""

    def __init__(self, stream: Stream, job_id: str) -> None:
        super().__init__(stream, COMPUTE_LEAD_TO_CLIENT)
        self.used_s = time.monotonic()
        self.lead = ""  # id of the lead, once it has answered
        self.num_calls = 0  # lower bound of the calls that this lead has accepted
        self.profiles: set[str] = set()  # call profiles that were sent on it
        try:
            self.greet(make_hello(role="client", job_id=job_id), timeout_s=_HELLO_S)
        except Unanswered:
            self.close()
            raise

    def send_parts(self, key: str, segments: Sequence[Segment]) -> None:
        """Send a large payload in parts."""
        for segment in segments:
            view = memoryview(segment)
            for start in range(0, len(view), names.PART_BYTES):
                part = view[start : start + names.PART_BYTES]
                self.send(PayloadPart(payload=key), [part])

    def is_alive(self) -> bool:
        """Return whether the lead still answers. A connection that was just used counts as alive."""
        try:
            if time.monotonic() - self.used_s < _FRESH_S:
                return not self.has_data() or self._drain()
            self._drain()
            info = self.ask(AskInfo(), timeout_s=_PING_S).message
            if isinstance(info, ComputeInfo):
                self.num_calls = info.num_calls
            return isinstance(info, ComputeInfo)
        except (OSError, ProtocolError):
            return False

    def _drain(self) -> bool:
        """Discard the heartbeats that arrived in the meantime. Raises if the connection has ended."""
        while self.receive(0) is not None:
            pass
        return True


def expect(kind: type[M], received: Received) -> M:
    """Return the received message, or raise ProtocolError if it is of another kind."""
    if not isinstance(received.message, kind):
        raise ProtocolError(
            f"the lead replied with {received.message.kind!r} instead of {kind.kind!r}"
        )
    return received.message


def ask_info(connection: Connection) -> ComputeInfo:
    """Ask the lead about its compute and itself."""
    info = expect(ComputeInfo, connection.ask(AskInfo()))
    connection.lead, connection.num_calls = info.born, info.num_calls
    return info


def ask_at(engine: ComputeEngine, ref: JobRef) -> ComputeInfo:
    """Ask the lead of a compute about itself, over a temporary connection."""
    with contextlib.closing(Connection(engine.dial(ref), ref.job_id)) as connection:
        return ask_info(connection)


class LeadConnections:
    """Free connections to the lead of one compute, and facts that the lead last reported."""

    def __init__(self, engine: ComputeEngine) -> None:
        self.spill = ""
        self.python = ""  # the nodes' Python version, such as 3.11
        self.projects: dict[str, str] = {}  # digests of projects that the lead has
        self._engine = engine
        self._free: list[Connection] = []

    def __del__(self) -> None:
        self.close()

    def open(self, ref: JobRef) -> tuple[Connection, ComputeInfo]:
        """Open a connection. Return it with the lead's description of the compute."""
        connection = Connection(self._engine.dial(ref), ref.job_id)
        info = ask_info(connection)
        self.spill, self.python = info.spill, info.python
        self.projects.update(info.projects)
        return connection, info

    def take(self) -> Connection | None:
        """Return a free connection whose lead still answers, or None."""
        while self._free:
            try:
                connection = self._free.pop()
            except IndexError:  # another thread took the last one
                break
            if connection.is_alive():
                return connection
            connection.close()
        return None

    def give(self, connection: Connection) -> None:
        """Keep a connection for the next call."""
        connection.used_s = time.monotonic()
        self._free.append(connection)

    def notify(self, ref: JobRef, message: Message) -> None:
        """Send a message over a separate connection, if the lead is alive. Never raises."""
        if sys.is_finalizing():
            return
        with contextlib.suppress(OSError, WindlassError):
            opened = Connection(self._engine.dial(ref), ref.job_id)
            with contextlib.closing(opened) as connection:
                connection.ask(message, timeout_s=_NOTIFY_TIMEOUT_S)

    def close(self) -> None:
        """Close the idle connections."""
        for connection in self._free:
            connection.close()
        self._free.clear()

    def forget_lead(self) -> None:
        """Close the free connections. Forget the projects too, because another lead has none."""
        self.close()
        self.projects.clear()

    def leave_to_parent(self) -> None:
        """Give up the connections in a forked process, without closing them for the parent."""
        _of_parent.extend(self._free)
        self._free = []
