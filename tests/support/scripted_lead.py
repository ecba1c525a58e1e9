"""A lead that follows a test's script on a real socket, and the compute that a call needs.

Each script serves one connection, in the order in which connections arrive. An error in a script fails the
test.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripted_peers import JOB, WAIT_S, make_profile

from windlass import names
from windlass.client.compute.calls.call_requests import CallRequest
from windlass.client.compute.calls.client_call import ClientCall
from windlass.client.compute.nodes.compute_connection import Connection, ask_info
from windlass.wire.frames import FrameDecoder, render_frame
from windlass.wire.message import Message
from windlass.wire.messages.calls import (
    CLIENT_TO_COMPUTE_LEAD,
    AskCall,
    AskInfo,
    CallResults,
    ComputeInfo,
    SetProfile,
)
from windlass.wire.messages.computes import CallAnswer
from windlass.wire.messages.link import Hello, Welcome
from windlass.wire.payloads import pack

CALL = f"{JOB}.1"


def make_info(*, born: str = "lead-1", num_calls: int = 0, spill: str = "") -> ComputeInfo:
    """Return what a lead reports about itself."""
    return ComputeInfo(
        job_id=JOB,
        spill=spill,
        nodes=1,
        here=[0],
        projects={},
        calls=[],
        num_calls=num_calls,
        idle_s=0.0,
        ttl_s=None,
        setup="",
        env={},
        steps=[],
        record={},
        version=names.VERSION,
        python="3.12",
        born=born,
    )


class LeadEnd:
    """The lead's end of one connection."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(WAIT_S)
        self.socket = connection
        self._decoder = FrameDecoder()
        self._received: list[tuple[Message, bytes]] = []

    def say(self, message: Message | dict[str, Any], body: bytes = b"") -> None:
        self.socket.sendall(render_frame(message, body))

    def say_all(self, *messages: Message) -> None:
        """Send several messages with one write."""
        self.socket.sendall(b"".join(render_frame(message) for message in messages))

    def hear(self, kind: type[Message]) -> Any:
        """Return the next message, which must be of this kind."""
        return self.hear_whole(kind)[0]

    def hear_whole(self, kind: type[Message]) -> tuple[Any, bytes]:
        """Return the next message, which must be of this kind, and its body."""
        message, body = self.hear_any()
        assert type(message) is kind, f"{message} where {kind.__name__} was due"
        return message, body

    def hear_any(self) -> tuple[Any, bytes]:
        """Return the next message of any kind and its body."""
        while not self._received:
            data = self.socket.recv(1 << 16)
            assert data, "the client hung up"
            for frame in self._decoder.feed(data):
                self._received.append((CLIENT_TO_COMPUTE_LEAD.read(frame.header), frame.body))
        return self._received.pop(0)

    def hear_call(self) -> tuple[AskCall, bytes]:
        """Return a call as it is first sent on a connection, after its profile."""
        self.hear(SetProfile)
        return self.hear_whole(AskCall)

    def give(self, *values: Any) -> None:
        """Answer with one value per rank, which ends the call."""
        bodies = [pickle.dumps(value) for value in values]
        answers = [CallAnswer(rank=rank, sizes=[len(body)]) for rank, body in enumerate(bodies)]
        self.say(CallResults(id=CALL, ends=True, answers=answers), b"".join(bodies))

    def hear_end(self) -> None:
        """Wait until the client hangs up, and assert that it sent nothing else."""
        assert not self._received
        assert self.socket.recv(1) == b""

    def welcome(self, **about: Any) -> None:
        """Greet the client as every lead does, and answer its request for information."""
        self.hear(Hello)
        self.say(Welcome())
        self.hear(AskInfo)
        self.say(make_info(**about))


Script = Callable[[LeadEnd], None]


class ScriptedLead:
    """A socket, and a thread that runs one script per incoming connection."""

    def __init__(self, path: Path, scripts: tuple[Script, ...]) -> None:
        self.path = path
        self._scripts = scripts
        self._errors: list[BaseException] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.settimeout(WAIT_S)
        self._thread = threading.Thread(target=self._play, daemon=True)
        self._thread.start()

    def _play(self) -> None:
        try:
            for script in self._scripts:
                connection, _ = self._listener.accept()
                with connection:
                    script(LeadEnd(connection))
        except BaseException as error:
            self._errors.append(error)
        finally:
            self._listener.close()

    def raise_error(self) -> None:
        """Raise the first error of a script."""
        if self._errors:
            raise self._errors[0]

    def finish(self) -> None:
        """Wait until all scripts have finished, and raise their first error."""
        self._thread.join(WAIT_S)
        self.raise_error()
        assert not self._thread.is_alive(), "a script is still played"


@dataclass
class ScriptedHome:
    """Compute as a call needs it: connections to its lead, and a record of what it was asked to do."""

    path: Path
    spill: str
    is_remote: bool = False
    idle: list[Connection] = field(default_factory=list)
    looked_after: list[str] = field(default_factory=list)
    logs: list[tuple[int, bytes]] = field(default_factory=list)

    def dial(self) -> Connection:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self.path))
        return Connection(connection, JOB)

    def take_connection(self, _timeout_s: float | None) -> Connection:
        if self.idle:
            return self.idle.pop()
        connection = self.dial()
        ask_info(connection)
        return connection

    def return_connection(self, connection: Connection) -> None:
        self.idle.append(connection)

    def notify(self, message: Message) -> None:
        with contextlib.closing(self.dial()) as connection:
            connection.ask(message)

    def report_wait(self, what: str) -> None:
        self.looked_after.append(what)

    def make_call(self, value: Any = None, **request: Any) -> ClientCall:
        """Return one call with a payload. Arguments override the fields of its request."""
        about = {
            "message": AskCall(id=CALL, profile="profile-1"),
            "segments": pack(value, name="value"),
            "profile": make_profile(),
            "make_sync": lambda _has: None,
            **request,
        }
        return ClientCall(
            self, CallRequest(**about), lambda rank, data: self.logs.append((rank, data))
        )


@contextlib.contextmanager
def scripted(*scripts: Script, is_remote: bool = False) -> Iterator[ScriptedHome]:
    """Yield a compute whose lead runs these scripts, each on one connection."""
    with tempfile.TemporaryDirectory(prefix="wl") as folder:  # tmp_path is too long for a socket
        spill = Path(folder, "payloads")
        spill.mkdir()
        lead = ScriptedLead(Path(folder, "lead.sock"), scripts)
        home = ScriptedHome(lead.path, str(spill), is_remote)
        try:
            yield home
        except BaseException:
            lead.raise_error()  # raises the script's error if that is the cause
            raise
        finally:
            for connection in home.idle:
                connection.close()
        lead.finish()


def check_often(monkeypatch: Any) -> None:
    """Make waiting calls check their compute without delay."""
    from windlass.client.compute.calls import client_call

    monkeypatch.setattr(client_call, "_CHECK_EVERY_S", 0.01)
