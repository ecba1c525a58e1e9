"""Protocol between an agent and its fork server: requests with attached pipes, and events in return.

A request is a length and JSON. The rank's two pipe ends are attached to its first bytes. An event is one line
of JSON. Both ends of the protocol are in this module so that they stay compatible.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct

from windlass import names, processes
from windlass.agent.fork_server_start import spawn_server
from windlass.records import to_json
from windlass.wire.messages.forkserver import (
    FORK_SERVER_TO_NODE,
    NODE_TO_FORK_SERVER,
    ForkServerGone,
    ForkStore,
    GuardRanks,
    PreloadModules,
)

TYPE_CHECKING = False  # not imported from typing, because every import here delays that of torch
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Sequence

    from windlass.wire.message import Message
    from windlass.wire.messages.forkserver import ClusterNode, ForkRank

_LENGTH = struct.Struct(">I")
_MAX_FDS = 8


def read_request(control: socket.socket) -> tuple[Message, list[int]] | None:
    """Return the next request and its file descriptors, or None if the agent has hung up."""
    data, fds, _, _ = socket.recv_fds(control, _LENGTH.size, _MAX_FDS)
    if not data:
        return None
    (length,) = _LENGTH.unpack(data)
    body = b""
    while len(body) < length:
        piece = control.recv(length - len(body))
        if not piece:
            return None
        body += piece
    return NODE_TO_FORK_SERVER.read(json.loads(body)), list(fds)


def send_event(control: socket.socket, event: Message) -> None:
    """Send an event to the agent. Raises ConnectionError if the agent is gone, which ends the fork server."""
    control.sendall(json.dumps(event.to_header()).encode() + b"\n")


class ForkServer:
    """Agent's end of the connection: starts the server, requests ranks, and receives their events."""

    def __init__(self) -> None:
        self._control: socket.socket | None = None
        self._loop: AbstractEventLoop | None = None
        self._preload: list[str] = []
        self._env: dict[str, str] = {}
        self._guard: tuple[GuardRanks, int] | None = None
        self.pid = 0

    @property
    def preload(self) -> list[str]:
        """Modules that the server preloads."""
        return list(self._preload)

    @property
    def is_running(self) -> bool:
        return self._control is not None

    def fits(self, preload: Sequence[str], env: dict[str, str]) -> bool:
        """Return whether the running server can replace one that `start` would create."""
        differing = {name for name in {*env, *self._env} if env.get(name) != self._env.get(name)}
        is_late = all(name.startswith(names.READ_LATE) for name in differing)
        return self.is_running and set(self._preload) <= set(preload) and is_late

    def start(self, preload: Sequence[str], env: dict[str, str]) -> None:
        """Start the server, which imports `preload` in `env` before it forks anything."""
        ours, theirs = socket.socketpair()
        self.adopt(ours, spawn_server(theirs.detach(), preload, env), preload, env)

    def adopt(
        self, control: socket.socket, pid: int, preload: Sequence[str], env: dict[str, str]
    ) -> None:
        """Take over a running server."""
        self._control, self.pid = control, pid
        self._preload, self._env = list(preload), env
        self._buffer = b""
        if self._loop is not None:
            self.listen(self._loop, self._on_event)
        if self._guard is not None:
            self.guard(*self._guard)

    def guard(self, request: GuardRanks, lease_fd: int) -> None:
        """Make this server, and servers started later, end the ranks when their lease lapses."""
        self._guard = request, lease_fd
        self._send_request(request, (lease_fd,))

    def extend(self, preload: Sequence[str]) -> None:
        """Request the import of more modules. The server sends `ModulesImported` again."""
        more = [name for name in preload if name not in self._preload]
        if more:
            self._preload += more
            self._send_request(PreloadModules(modules=more))

    def revive(self) -> None:
        """Restart the server if it has died."""
        if not self.is_running:
            self.start(self._preload, self._env)

    def listen(self, loop: AbstractEventLoop, on_event: Callable[[Message], None]) -> None:
        """Pass events to `on_event` from now on, including those of servers started later."""
        self._loop, self._on_event = loop, on_event
        if self._control is not None:
            self._control.setblocking(False)
            loop.add_reader(self._control.fileno(), self._read)

    def fork(self, request: ForkRank, fds: tuple[int, ...]) -> None:
        """Request one rank. `ProcessStarted` and a single `ProcessExited` follow as events."""
        if own := self._own_variables:
            request = request.replaced(forget=own)
        self._send_request(request, fds)

    def open_store(
        self,
        framework: str,
        *,
        attempt: int,
        address: str,
        port: int,
        cluster: ClusterNode | None = None,
        fds: tuple[int, ...] = (),
    ) -> None:
        """Request the store of an attempt. `StoreOpened` follows with its port, or 0 if there is no store."""
        request = ForkStore(framework=framework, attempt=attempt, address=address, port=port)
        if cluster is not None:
            cluster = cluster.replaced(forget=self._own_variables)
            request = request.replaced(cluster=cluster)
        self._send_request(request, fds)

    @property
    def _own_variables(self) -> list[str]:
        """Variables that were set for the server alone, which its children must not inherit."""
        return [name for name in (names.OPENBLAS_NUM_THREADS,) if name not in self._env]

    def _send_request(self, request: Message, fds: tuple[int, ...] = ()) -> None:
        if self._control is None:
            return
        body = json.dumps(request.to_header(), default=to_json).encode()
        self._control.setblocking(True)
        try:
            socket.send_fds(self._control, [_LENGTH.pack(len(body))], fds)
            self._control.sendall(body)
        except ConnectionError:
            return  # `_read` reports the death of the server
        finally:
            self._control.setblocking(False)

    def _read(self) -> None:
        if self._control is None:
            return
        try:
            data = self._control.recv(65536)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._hang_up()
            self._on_event(ForkServerGone())
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._on_event(FORK_SERVER_TO_NODE.read(json.loads(line)))

    def close(self) -> None:
        """Kill the server and all its descendants."""
        self._hang_up()
        if self.pid:
            processes.kill_descendants(os.getpid(), spare=frozenset({self.pid}))
            processes.kill(self.pid, signal.SIGKILL)
            processes.kill_descendants(os.getpid())

    def _hang_up(self) -> None:
        if self._control is not None:
            if self._loop is not None:
                self._loop.remove_reader(self._control.fileno())
            self._control.close()
            self._control = None
