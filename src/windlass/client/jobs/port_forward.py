"""Access to a port of node 0 of a job from this machine: its address, or a listener that forwards to it.

Nodes on this machine need no listener, because their ports are local, though perhaps with another number.
The engine opens the connections to pods.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading

from windlass import names
from windlass.client.jobs.job import Job
from windlass.errors import EngineError, SpecError, WindlassError
from windlass.waiting import wait_until

logger = logging.getLogger(__name__)

_LOOPBACK = "127.0.0.1"
_APPEARS_S = 10.0
_LOOK_EVERY_S = 0.25
_LOOK_S = 1.0  # the stream ends within this time if nothing listens in the pod
_CHUNK_BYTES = 64 << 10


def read_ports(text: str) -> tuple[int, int]:
    """Return the local port and the port of node 0, from `8265` or `9000:8265`."""
    here, _, there = text.rpartition(":")
    numbers = [here or there, there]
    if not all(number.isdecimal() and 0 < int(number) < 1 << 16 for number in numbers):
        raise SpecError(
            f"invalid port {text!r:.40}",
            hint="use a port such as 8265, or LOCAL:PORT such as 9000:8265",
        )
    return int(numbers[0]), int(numbers[1])


def find_here(job: Job, port: int) -> str:
    """Return the address of a port of a job on this machine. Raise EngineError if nothing listens."""
    kind = f"port {port}"
    ports = [c for c in job.status().conditions if c.type == kind and c.reason == names.REASON_PORT]
    address = ports[-1].message if ports else f"{_LOOPBACK}:{port}"
    check_open(job, int(address.rpartition(":")[2]))
    return address


def check_open(job: Job, port: int) -> None:
    """Raise EngineError if nothing listens at the port.

    Waits a while for servers that start with the work, such as a dashboard.
    """
    faults: list[OSError] = []

    def is_settled() -> bool:
        faults[:] = _find_fault(job, port)
        return not faults or job.done()

    wait_until(is_settled, timeout_s=_APPEARS_S, every_s=_LOOK_EVERY_S)
    if faults:
        raise EngineError(
            f"nothing listens at port {port} of node 0 of {job.id}: {faults[0]}",
            hint=f"run `windlass status {job.id}` to check whether the job is running",
        ) from faults[0]


def _find_fault(job: Job, port: int) -> list[OSError]:
    """Return why the port cannot be reached. Empty if something listens."""
    try:
        with contextlib.closing(job.open_port(port)) as connection:
            connection.settimeout(_LOOK_S)
            with contextlib.suppress(TimeoutError):
                if not connection.recv(1, socket.MSG_PEEK):
                    return [ConnectionRefusedError("it closes connections immediately")]
    except OSError as error:
        return [error]
    return []


class PortForward:
    """Listener on this machine that forwards each connection to node 0."""

    def __init__(self, job: Job, port: int, *, local_port: int) -> None:
        self._job = job
        self._port = port
        try:
            self._listener = socket.create_server((_LOOPBACK, local_port))
        except OSError as error:
            raise EngineError(
                f"cannot use port {local_port} of this machine: {error.strerror}",
                hint=f"try another local port: {local_port + 1}:{port}",
            ) from error
        self.address = f"{_LOOPBACK}:{self._listener.getsockname()[1]}"

    def serve(self) -> None:
        """Forward connections until this object is closed."""
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _carry(self, client: socket.socket) -> None:
        with client:
            try:
                node = self._job.open_port(self._port)
            except (OSError, WindlassError) as error:
                logger.warning("port %s of %s: %s", self._port, self._job.id, error)
                return
            with node:
                back = threading.Thread(target=_copy, args=(node, client), daemon=True)
                back.start()
                _copy(client, node)
                back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy all data until either side closes, then close both sides."""
    source.settimeout(None)
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK_BYTES):
            target.sendall(data)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
