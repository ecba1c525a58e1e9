"""Unix socket of a local job's lead, its folder, and a client's connection to it.

The folder is chosen when the job starts, and its path is kept in the job's folder. A client connects
only if the socket has the right owner. An open connection holds the job's lease.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from windlass import names
from windlass.errors import EngineError
from windlass.trusted import find_peer_fault, find_private_fault, make_private
from windlass.waiting import wait_until
from windlass.wire.blocking_link import BlockingLink, ConnectionBroken, Unanswered
from windlass.wire.frames import make_hello
from windlass.wire.job_folder import JobFolder
from windlass.wire.messages.jobs import LEAD_TO_CLIENT

_MAX_SOCKET_PATH = 103  # limit of macOS, Linux allows 107
_LONGEST = "node-9999.sock"
_MAX_PLACE_BYTES = 4096
_HINT = "set TMPDIR to a folder of your own"
_CONNECT_TIMEOUT_S = 60.0


def make_socket_folder(job_id: str) -> Path:
    """Create a private folder with a path that is short enough for sockets."""
    path = _find_place(job_id)
    try:
        make_private(path.parent, hint=_advise(path.parent))
        shutil.rmtree(path, ignore_errors=True)  # left by a lead that could not clean up
        make_private(path)
    except OSError as error:
        raise EngineError(
            f"cannot start the job: {path.parent}: {error.strerror}",
            hint=f"remove it, or {_HINT}",
        ) from error
    return path


def _advise(place: Path) -> str:
    """Return a hint for an unsafe folder. Never suggest chmod for a link, because chmod follows links."""
    is_folder = place.is_dir() and not place.is_symlink()
    return f"{f'chmod 700 {place}, or ' if is_folder else ''}remove it, or {_HINT}"


def _find_place(job_id: str) -> Path:
    for folder in _temporary_folders():
        path = folder / f"windlass-{os.geteuid()}" / job_id
        if len(os.fsencode(path / _LONGEST)) <= _MAX_SOCKET_PATH:
            return path
    raise EngineError(
        f"{tempfile.gettempdir()} is too long for the path of a socket",
        hint="set TMPDIR to a shorter one",
    )


def _temporary_folders() -> Iterator[Path]:
    """Yield the user's temporary folder, then shorter ones in case its path is too long."""
    yield Path(tempfile.gettempdir())
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and not find_private_fault(runtime):
        yield Path(runtime)
    yield Path("/tmp")  # noqa: S108 - a private folder is made in it


def record_socket_folder(folder: JobFolder, sockets: Path) -> None:
    """Record the folder of a job's sockets in the job's private folder."""
    folder.sockets.write_bytes(os.fsencode(sockets))


def find_socket_folder(folder: JobFolder) -> Path:
    """Return the folder of a job's sockets.

    Raise OSError if it no longer exists, or EngineError if it is not private to the current user.
    """
    with folder.sockets.open("rb") as file:
        path = Path(os.fsdecode(file.read(_MAX_PLACE_BYTES)))
    path.lstat()
    for place in (path.parent, path):
        if fault := find_private_fault(place):
            raise EngineError(
                fault,
                hint=f"the sockets of {folder.path.name} were there; `windlass rm {folder.path.name}` "
                "removes the job",
            )
    return path


def remove_socket_folder(folder: JobFolder) -> None:
    """Remove the folder of a job's sockets, if it still belongs to this user."""
    try:
        shutil.rmtree(find_socket_folder(folder), ignore_errors=True)
    except (OSError, EngineError):
        return


def dial_lead(folder: JobFolder, *, timeout_s: float | None = None) -> socket.socket:
    """Return a connection to the lead.

    Raise EngineError if the lead or its folder belongs to another user.
    """
    path = find_socket_folder(folder) / names.LEAD_SOCKET
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(str(path))
        if fault := find_peer_fault(connection):
            raise EngineError(f"{fault} at {path}", hint=f"remove {path.parent}, and start again")
    except BaseException:
        connection.close()
        raise
    return connection


def reach_lead(
    folder: JobFolder, *, lease: bool, is_needed: Callable[[], bool]
) -> BlockingLink | None:
    """Return a link to the lead, which may still be starting, or None if it ended or is not needed."""
    job_id = folder.path.name
    sockets: list[socket.socket] = []

    def is_reached() -> bool:
        with contextlib.suppress(OSError):
            sockets.append(dial_lead(folder, timeout_s=_CONNECT_TIMEOUT_S))
        return bool(sockets) or not is_needed()

    if not wait_until(is_reached, timeout_s=_CONNECT_TIMEOUT_S, every_s=0.01):
        raise EngineError(
            f"the lead of {job_id} did not answer in {_CONNECT_TIMEOUT_S:g} s",
            hint="run `windlass doctor`; the job's agent-0.log shows what it is doing",
        )
    hello = make_hello(role="client", job_id=job_id).replaced(lease=lease)
    if not sockets:
        return None
    link = BlockingLink(sockets[0], LEAD_TO_CLIENT)
    try:
        link.greet(hello, timeout_s=_CONNECT_TIMEOUT_S)
    except Unanswered:
        if not lease:
            link.close()
            return (
                None  # a link with a lease is kept, because a slow lead will still read the request
            )
    except ConnectionBroken:
        return None
    return link
