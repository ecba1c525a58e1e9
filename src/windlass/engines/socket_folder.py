"""The folder of a local job's sockets: where it is made, where that is kept, and who may answer there.

It lies in the temporary folder, which everybody shares. So its place is kept in the job's own folder rather
than guessed again, its owner and mode are looked at each time, and nobody is spoken to before the system has
said whose process listens.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from windlass import names
from windlass.errors import EngineError
from windlass.trusted import find_peer_fault, find_private_fault, make_private
from windlass.wire.job_folder import JobFolder

_MAX_SOCKET_PATH = 103  # of macOS; Linux takes 107
_LONGEST = "node-9999.sock"
_MAX_PLACE_BYTES = 4096
_HINT = "set TMPDIR to a folder of your own"


def make_socket_folder(job_id: str) -> Path:
    """A folder with a short path, which sockets need, that nobody else may enter."""
    path = _find_place(job_id)
    try:
        make_private(path.parent, hint=_advise(path.parent))
        shutil.rmtree(path, ignore_errors=True)  # of a lead that could not clear up behind itself
        make_private(path)
    except OSError as error:
        raise EngineError(
            f"cannot start the job: {path.parent}: {error.strerror}",
            hint=f"remove what is there, or {_HINT}",
        ) from error
    return path


def _advise(place: Path) -> str:
    """No chmod of a link: it would change what that leads to, which is what somebody else chose."""
    is_folder = place.is_dir() and not place.is_symlink()
    return f"{f'chmod 700 {place}, or ' if is_folder else ''}remove it, or {_HINT}"


def _find_place(job_id: str) -> Path:
    for folder in _temporary_folders():
        path = folder / f"windlass-{os.geteuid()}" / job_id
        if len(os.fsencode(path / _LONGEST)) <= _MAX_SOCKET_PATH:
            return path
    raise EngineError(
        f"{tempfile.gettempdir()} is too long for a socket's name",
        hint="set TMPDIR to a shorter one",
    )


def _temporary_folders() -> Iterator[Path]:
    """The user's choice first; those after it are short, and only for when that one is too long."""
    yield Path(tempfile.gettempdir())
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and not find_private_fault(runtime):
        yield Path(runtime)
    yield Path("/tmp")  # noqa: S108 - a private folder is made in it


def keep_place(folder: JobFolder, sockets: Path) -> None:
    """Write down where a job's sockets are, in its own folder, which is closed to others."""
    folder.sockets.write_bytes(os.fsencode(sockets))


def find_socket_folder(folder: JobFolder) -> Path:
    """Where a job's sockets are; OSError when they are gone, refused by name when they are not ours."""
    with folder.sockets.open("rb") as file:
        path = Path(os.fsdecode(file.read(_MAX_PLACE_BYTES)))
    path.lstat()
    for place in (path.parent, path):
        if fault := find_private_fault(place):
            raise EngineError(
                fault,
                hint=f"the sockets of {folder.path.name} were there; windlass rm {folder.path.name} "
                "forgets it",
            )
    return path


def remove_socket_folder(folder: JobFolder) -> None:
    """Remove what a lead left there, if it is still ours."""
    try:
        shutil.rmtree(find_socket_folder(folder), ignore_errors=True)
    except (OSError, EngineError):
        return


def dial_lead(folder: JobFolder, *, timeout_s: float | None = None) -> socket.socket:
    """A connection to the lead, which is a process of ours: looked at before anything is said."""
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
