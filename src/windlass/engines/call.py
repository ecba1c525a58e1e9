"""A client's call to the lead on this machine: a blocking link over its Unix socket.

For clients that are not event loops. Opens, says hello, sends orders; holding it open holds the lease.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from windlass import names
from windlass.errors import EngineError
from windlass.waiting import wait_until
from windlass.wire.messages import Frame, FrameDecoder, Header, make_hello, refusal, render_frame

_CONNECT_TIMEOUT_S = 60.0


class LeadCall:
    """One connection to the lead of one job."""

    def __init__(self, run_dir: Path, job_id: str, *, lease: bool) -> None:
        self._path = run_dir / names.LEAD_SOCKET
        self._hello = {**make_hello(role="client", job_id=job_id), "lease": lease}
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
                f"the lead did not answer at {self._path} within {_CONNECT_TIMEOUT_S:g} s",
                hint="windlass doctor; the job's agent-0.log says what it is doing",
            )
        if self._socket is None:
            return False
        return self.send(self._hello)

    def _try(self) -> bool:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(_CONNECT_TIMEOUT_S)
        try:
            connection.connect(str(self._path))
        except OSError:
            connection.close()
            return False
        self._socket = connection
        return True

    def send(self, header: Header) -> bool:
        """Say something and hear that it was heard; False when the lead ended meanwhile."""
        answer = self._ask(header)
        if answer is None:
            return False
        if refused := refusal(answer.header):
            raise refused
        return True

    def _ask(self, header: Header) -> Frame | None:
        if self._socket is None:
            return None
        try:
            self._socket.sendall(render_frame(header))
            while True:
                data = self._socket.recv(65536)
                if not data:
                    return None
                for frame in self._decoder.feed(data):
                    return frame
        except OSError:
            return None
