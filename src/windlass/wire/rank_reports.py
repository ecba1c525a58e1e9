"""Datagrams between a rank and its node: reports from the rank, and its release at the end.

`windlass.report` sends at most ten datagrams a second to the agent's socket and never blocks. Outside a job
it does nothing. A rank that is done binds a socket, and its agent releases it there when its peers are done
too. `agent.node.node` reads the reports. This module runs in users' processes, so it imports little and
starts no thread.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from windlass import names
from windlass.wire.messages.ranks import RankReport

_EVERY_S = 0.1


class PeerRelease:
    """Socket on which a rank that is done waits for its peers."""

    def __init__(self, folder: Path, *, rank: int, attempt: int) -> None:
        path = _make_path(folder, rank=rank, attempt=attempt)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.bind(path)
        except OSError:
            self._socket.close()
            raise

    def wait(self, limit_s: float) -> None:
        """Wait until the agent releases this rank, the limit passes or a signal handler raises."""
        self._socket.settimeout(limit_s)
        try:
            self._socket.recv(1)
        except BaseException:  # noqa: BLE001, S110 - a timeout, or any exception of the user's signal handler
            pass
        finally:
            self._socket.close()


def release(folder: Path, *, rank: int, attempt: int) -> None:
    """Release a rank that waits for its peers. Do nothing if the rank is gone."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        with contextlib.suppress(OSError):
            sender.sendto(b".", _make_path(folder, rank=rank, attempt=attempt))


def _make_path(folder: Path, *, rank: int, attempt: int) -> str:
    return str(folder / f"done-{attempt}-{rank}")


class _Reporter:
    """Buffer of unsent reports and the socket for them. Keeps the last value of each metric, by step."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.path = os.environ.get(names.REPORT_SOCKET, "")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if self.path else None
        if self.socket is not None:
            self.socket.setblocking(False)
            atexit.register(self.flush)
        self.pending: list[tuple[int | None, dict[str, Any]]] = []
        self.sent_at_s = 0.0
        self.step: int | None = None
        self.total: int | None = None

    def report(self, step: int | None, total: int | None, metrics: dict[str, Any]) -> None:
        if self.socket is None:
            return
        self.step = self.step if step is None else int(step)
        self.total = self.total if total is None else int(total)
        self._add(metrics)
        now_s = time.monotonic()
        is_last = self.step is not None and self.step == self.total
        if is_last or now_s - self.sent_at_s >= _EVERY_S:
            self.sent_at_s = now_s
            self.flush()

    def _add(self, metrics: dict[str, Any]) -> None:
        """Keep the last value of each metric, with the step it was reported for."""
        older = []
        for step, values in self.pending:
            if step == self.step:
                metrics = {**values, **metrics}
            elif kept := {name: values[name] for name in values if name not in metrics}:
                older.append((step, kept))
        self.pending = [*older, (self.step, metrics)]

    def flush(self) -> None:
        while self.pending and self.socket is not None and self.pid == os.getpid():
            step, metrics = self.pending[0]
            message = RankReport(
                rank=int(os.environ.get(names.RANK, "0")),
                attempt=int(os.environ.get(names.ATTEMPT, "0")),
                step=step,
                total=self.total,
                metrics={str(k): _plain(v) for k, v in metrics.items()},
                at_s=time.time(),
            )
            if not send(self.socket, self.path, message.to_header()):
                return
            del self.pending[0]


_reporter: _Reporter | None = None


def report(step: int | None = None, total: int | None = None, **metrics: Any) -> None:
    """Report this rank's progress: `wl.report(step=3, total=100, loss=0.25)`.

    The live view and `windlass status` show it. Tensors with one element are converted to numbers, but
    only when a report is sent, so a call at every step is cheap.

    step: the current step of this rank.
    total: the total number of steps.
    metrics: any other numbers or texts, by name.
    """
    global _reporter
    if _reporter is None or _reporter.pid != os.getpid():
        _reporter = _Reporter()
    _reporter.report(step, total, metrics)


def send(sender: socket.socket, path: str, header: dict[str, Any]) -> bool:
    """Send one message. Return False only if the agent's socket buffer is full."""
    data = json.dumps(header).encode()
    if len(data) > names.MAX_DATAGRAM_BYTES:
        return True  # drop it: a datagram this large can never be sent
    try:
        sender.sendto(data, path)
    except BlockingIOError:
        return False
    except OSError:
        return True  # the agent has exited, so this process ends soon
    return True


def _plain(value: Any) -> Any:
    """Return a number, text, bool or None. Convert anything else to text of at most 200 characters."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    try:
        value = value.item()
    except (AttributeError, RuntimeError, ValueError, TypeError):
        return str(value)[:200]
    return value if isinstance(value, (bool, int, float)) else str(value)[:200]
