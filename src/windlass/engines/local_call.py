"""A client's call to the lead on this machine: a blocking link over its Unix socket.

For clients that are not event loops. Opens, says hello, sends orders; holding it open holds the lease.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from types import TracebackType

from windlass.engines.socket_folder import dial_lead
from windlass.errors import EngineError
from windlass.waiting import wait_until
from windlass.wire.frames import Frame, FrameDecoder, make_hello, refusal, render_frame
from windlass.wire.job_folder import JobFolder
from windlass.wire.message import Message

_CONNECT_TIMEOUT_S = 60.0


class LeadCall:
    """One connection to the lead of one job."""

    def __init__(self, folder: JobFolder, *, lease: bool) -> None:
        self._folder = folder
        self._hello = make_hello(role="client", job_id=folder.path.name).replaced(lease=lease)
        self._socket: socket.socket | None = None
        self._decoder = FrameDecoder()

    def __enter__(self) -> LeadCall:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self._socket is not None:
            self._socket.close()

    def connect(self, *, is_needed: Callable[[], bool]) -> bool:
        """Reach the lead, which may still be starting; False once it is no longer needed."""
        if not wait_until(
            lambda: self._try() or not is_needed(), timeout_s=_CONNECT_TIMEOUT_S, every_s=0.01
        ):
            raise EngineError(
                f"the lead of {self._folder.path.name} did not answer in {_CONNECT_TIMEOUT_S:g} s",
                hint="windlass doctor; the job's agent-0.log says what it is doing",
            )
        if self._socket is None:
            return False
        return self.send(self._hello)

    def _try(self) -> bool:
        try:
            self._socket = dial_lead(self._folder, timeout_s=_CONNECT_TIMEOUT_S)
        except OSError:
            return False
        return True

    def send(self, message: Message) -> bool:
        """Say something and hear that it was heard; False when the lead ended meanwhile."""
        answer = self._ask(message)
        if answer is None:
            return False
        if refused := refusal(answer.header):
            raise refused
        return True

    def _ask(self, message: Message) -> Frame | None:
        if self._socket is None:
            return None
        try:
            self._socket.sendall(render_frame(message))
            while True:
                data = self._socket.recv(65536)
                if not data:
                    return None
                for frame in self._decoder.feed(data):
                    return frame
        except OSError:
            return None
