"""Whether a folder, a file or a socket's other end is ours, where other users share the machine.

Whoever reads byte code, pickles or settings from a place asks here first. Two kinds of place: *private* ones
on ground that everybody may write to, which must be ours and closed to all others, never a link; and the
user's own, which are made so and where links of the user's own are fine. Imports little: `windlass run` looks
here before anything else.
"""

from __future__ import annotations

import contextlib
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

_OTHERS = 0o077
_OTHERS_WRITE = 0o022
_EVERYBODY_WRITES = 0o002
_ROOT = 0


def make_private(path: str | os.PathLike[str], *, hint: str = "") -> None:
    """A folder on shared ground that nobody else may enter: made, or found to be so; else refused by name."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
        os.chmod(path, 0o700)  # whatever the umask took from it
    if fault := find_private_fault(path):
        from windlass.errors import EngineError

        raise EngineError(fault, hint=hint or f"have it removed: rm -r {os.fspath(path)}")


def find_private_fault(path: str | os.PathLike[str]) -> str:
    """Why a folder on shared ground is not ours alone; empty when it is."""
    place = os.fspath(path)
    try:
        info = os.lstat(place)
    except OSError as error:
        return f"{place}: {error.strerror}"
    if stat.S_ISLNK(info.st_mode):
        return f"{place} is a link, which anybody may have put there"
    if not stat.S_ISDIR(info.st_mode):
        return f"{place} is not a folder"
    if info.st_uid != os.geteuid():
        return f"{place} belongs to somebody else (user {info.st_uid})"
    if info.st_mode & _OTHERS:
        return f"{place} is open to others (mode {stat.S_IMODE(info.st_mode):o})"
    return ""


def make_own(
    path: str | os.PathLike[str],
    *,
    below: str | os.PathLike[str] | None = None,
    is_new: bool = False,
) -> None:
    """A folder in a place of the user's own, mode 0700 whatever the umask; one that is open is closed.

    With `below`, all folders between that one and this as well. That one is the user's choice: it is made if
    it is missing, and else left as it is. With `is_new`, FileExistsError where `path` is there already.
    """
    place = os.path.abspath(path)
    top = os.path.dirname(place) if below is None else os.path.abspath(below)
    if below is not None:
        _make_with_parents(top)
    for part in os.path.relpath(place, top).split(os.sep):
        top = os.path.join(top, part)
        _make(top, is_new=is_new and top == place)
        check_folder_owner(top)
        _close(top)


def check_folder_owner(folder: str | os.PathLike[str]) -> None:
    """Refuse by name a folder that belongs to somebody else; one that is not there is nobody's."""
    try:
        fault = find_foreign_fault(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    except PermissionError as error:  # as after one `sudo`, which leaves root's folders in a home
        fault = f"{os.fspath(folder)}: {error.strerror}"
    if fault:
        from windlass.errors import EngineError

        raise EngineError(
            fault, hint="set WINDLASS_HOME to a folder of your own, or have this one removed"
        )


def _make_with_parents(folder: str) -> None:
    if not os.path.isdir(folder):
        if (parent := os.path.dirname(folder)) != folder:
            _make_with_parents(parent)
        _make(folder)


def _make(folder: str, *, is_new: bool = False) -> None:
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        if is_new or not os.path.isdir(folder):
            raise
        return
    with contextlib.suppress(PermissionError):  # of file systems that know no modes
        os.chmod(folder, 0o700)  # whatever the umask took from it


def _close(folder: str) -> None:
    """As far as that can be done: some file systems know no modes."""
    if os.stat(folder).st_mode & _OTHERS:
        with contextlib.suppress(OSError):
            os.chmod(folder, 0o700)


def find_foreign_fault(path: str | os.PathLike[str], *, is_closed: bool = False) -> str:
    """Why what lies there may be somebody else's: it belongs neither to us nor to root; empty when it does.

    With `is_closed`, also because others may write to it.
    """
    place = os.fspath(path)
    for info in (os.lstat(place), os.stat(place)):  # the link, and what it leads to
        if fault := _judge_owner(place, info):
            return fault
    return _judge_mode(place, info) if is_closed else ""


def find_owner_fault(file: int, path: str | os.PathLike[str]) -> str:
    """Why an open file is somebody else's: the owner of what was really opened."""
    return _judge_owner(os.fspath(path), os.fstat(file))


def find_settings_fault(file: int, path: str | os.PathLike[str]) -> str:
    """The same, or because a link of somebody else chose it, or since it is no file that has an end."""
    place = os.fspath(path)
    fault = find_owner_fault(file, path) or _judge_owner(place, os.lstat(place))
    is_plain = stat.S_ISREG(os.fstat(file).st_mode)
    return fault or ("" if is_plain else f"{place} is not a plain file")


def find_file_fault(file: int, path: str | os.PathLike[str]) -> str:
    """The same, and because others may write to it: of a file that will be executed."""
    return find_owner_fault(file, path) or _judge_mode(os.fspath(path), os.fstat(file))


def _judge_owner(place: str, info: os.stat_result) -> str:
    if info.st_uid in (os.geteuid(), _ROOT):
        return ""
    return f"{place} belongs to somebody else (user {info.st_uid})"


def _judge_mode(place: str, info: os.stat_result) -> str:
    if info.st_mode & _OTHERS_WRITE:
        return f"others may write to {place} (mode {stat.S_IMODE(info.st_mode):o})"
    return ""


def open_now(path: str, flags: int) -> int:
    """An opener that never waits for a writer: somebody may have left a pipe there."""
    return os.open(path, flags | os.O_NONBLOCK)


def is_open_to_everybody(folder: str | os.PathLike[str]) -> bool:
    """Whether anybody may put files there, as in /tmp."""
    try:
        return bool(os.stat(folder).st_mode & _EVERYBODY_WRITES)
    except OSError:  # one that we may not even look at is none of ours
        return True


def find_peer_fault(connection: socket.socket) -> str:
    """Why the process at the other end of a Unix socket is not ours; empty if it is, or nobody can tell."""
    import socket
    import struct

    option = getattr(socket, "SO_PEERCRED", None)
    if option is None or connection.family != socket.AF_UNIX:
        return ""  # not Linux: the folder's owner and mode must do
    credentials = struct.Struct("3i")
    said = connection.getsockopt(socket.SOL_SOCKET, option, credentials.size)
    _, uid, _ = credentials.unpack(said)
    return (
        "" if uid in (os.geteuid(), _ROOT) else f"a process of somebody else (user {uid}) listens"
    )
