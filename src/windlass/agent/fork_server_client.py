"""Between agent and fork server: requests with pipes attached one way, events the other.

A request is a length and JSON; the rank's two pipe ends travel with its first bytes. An event is a line
of JSON. Both ends are here so that they cannot drift apart; neither end's work is.
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

TYPE_CHECKING = False  # typing's own; what is imported here delays the import of torch
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Sequence

    from windlass.wire.message import Message
    from windlass.wire.messages.forkserver import ClusterNode, ForkRank

_LENGTH = struct.Struct(">I")
_MAX_FDS = 8


def read_request(control: socket.socket) -> tuple[Message, list[int]] | None:
    """The next request and the descriptors that came with it; None when the agent has hung up."""
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
    """Tell the agent; if it is gone, so is the reason to go on."""
    control.sendall(json.dumps(event.to_header()).encode() + b"\n")


class ForkServer:
    """The agent's end: starts the server, asks for ranks, hears of their ends."""

    def __init__(self) -> None:
        self._control: socket.socket | None = None
        self._loop: AbstractEventLoop | None = None
        self._preload: list[str] = []
        self._env: dict[str, str] = {}
        self._guard: tuple[GuardRanks, int] | None = None
        self.pid = 0

    @property
    def preload(self) -> list[str]:
        """What it imports ahead by now."""
        return list(self._preload)

    @property
    def is_running(self) -> bool:
        return self._control is not None

    def fits(self, preload: Sequence[str], env: dict[str, str]) -> bool:
        """Whether the running server is what `start` would give, as far as imports can tell."""
        differing = {name for name in {*env, *self._env} if env.get(name) != self._env.get(name)}
        is_late = all(name.startswith(names.READ_LATE) for name in differing)
        return self.is_running and set(self._preload) <= set(preload) and is_late

    def start(self, preload: Sequence[str], env: dict[str, str]) -> None:
        """Start the server; it imports `preload` in `env` before it forks anything."""
        ours, theirs = socket.socketpair()
        self.adopt(ours, spawn_server(theirs.detach(), preload, env), preload, env)

    def adopt(
        self, control: socket.socket, pid: int, preload: Sequence[str], env: dict[str, str]
    ) -> None:
        """Take over a server that was started before."""
        self._control, self.pid = control, pid
        self._preload, self._env = list(preload), env
        self._buffer = b""
        if self._loop is not None:
            self.listen(self._loop, self._on_event)
        if self._guard is not None:
            self.guard(*self._guard)

    def guard(self, request: GuardRanks, lease_fd: int) -> None:
        """Have this server, and those that are started later, end ranks whose lease lapses."""
        self._guard = request, lease_fd
        self._ask(request, (lease_fd,))

    def extend(self, preload: Sequence[str]) -> None:
        """Have it import what it was not started with; it says `ready` again."""
        more = [name for name in preload if name not in self._preload]
        if more:
            self._preload += more
            self._ask(PreloadModules(modules=more))

    def revive(self) -> None:
        """Start it again if it has died."""
        if not self.is_running:
            self.start(self._preload, self._env)

    def listen(self, loop: AbstractEventLoop, on_event: Callable[[Message], None]) -> None:
        """Hand events to the loop from now on, also those of a server that is started later."""
        self._loop, self._on_event = loop, on_event
        if self._control is not None:
            self._control.setblocking(False)
            loop.add_reader(self._control.fileno(), self._read)

    def fork(self, request: ForkRank, fds: tuple[int, ...]) -> None:
        """Ask for one rank; `started` and, once, `exited` follow as events."""
        if own := self._own_variables:
            request = request.replaced(forget=own)
        self._ask(request, fds)

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
        """Ask for the store of an attempt; `store` follows with its port, 0 where there can be none."""
        request = ForkStore(framework=framework, attempt=attempt, address=address, port=port)
        if cluster is not None:
            cluster = cluster.replaced(forget=self._own_variables)
            request = request.replaced(cluster=cluster)
        self._ask(request, fds)

    @property
    def _own_variables(self) -> list[str]:
        """Which the server was given for itself alone."""
        return [name for name in (names.OPENBLAS_NUM_THREADS,) if name not in self._env]

    def _ask(self, request: Message, fds: tuple[int, ...] = ()) -> None:
        if self._control is None:
            return
        body = json.dumps(request.to_header(), default=to_json).encode()
        self._control.setblocking(True)
        try:
            socket.send_fds(self._control, [_LENGTH.pack(len(body))], fds)
            self._control.sendall(body)
        except ConnectionError:
            return  # its death is an event of its own
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
        """End the server and everything below it."""
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
