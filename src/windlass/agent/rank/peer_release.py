"""A rank that is done waits for its peers: how its agent tells it that they are done too.

A datagram to a socket that the rank binds beside its agent's, when it is done and not before, so that user
code finds no descriptor of ours. Both ends are here so that they cannot drift apart.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path


class PeerRelease:
    """The rank's end."""

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
        """Until the agent says so, or the limit; returns also when the agent is gone or a signal came."""
        self._socket.settimeout(limit_s)
        try:
            self._socket.recv(1)
        except BaseException:  # noqa: BLE001, S110 - the limit, or what a signal handler of the user's raised
            pass
        finally:
            self._socket.close()


def release(folder: Path, *, rank: int, attempt: int) -> None:
    """The agent's end: tell a rank to go on to its end; one that is gone hears nothing."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        with contextlib.suppress(OSError):
            sender.sendto(b".", _make_path(folder, rank=rank, attempt=attempt))


def _make_path(folder: Path, *, rank: int, attempt: int) -> str:
    return str(folder / f"done-{attempt}-{rank}")
