"""Ownership checks for folders, files and socket peers on machines with several users.

Callers check a folder or file here before they read byte code, pickles or settings from it. There are two
kinds of folders:

- A private folder lies in a folder that all users may write to, such as /tmp. It must belong to this user,
  must be closed to all others, and must not be a link.
- The user's own folders are created with mode 0700. Links that the user made are allowed there.

Imports little, because `windlass run` checks folders before anything else.
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
_ALL_MAY_WRITE = 0o002
_ROOT = 0


def make_private(path: str | os.PathLike[str], *, hint: str = "") -> None:
    """Make a private folder inside a shared one. Raise EngineError if an existing one is not private."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
        os.chmod(path, 0o700)  # the umask may have removed bits
    if fault := find_private_fault(path):
        from windlass.errors import EngineError

        raise EngineError(fault, hint=hint or f"remove it: rm -r {os.fspath(path)}")


def find_private_fault(path: str | os.PathLike[str]) -> str:
    """Return why a folder inside a shared one is not private, or an empty string if it is."""
    place = os.fspath(path)
    try:
        info = os.lstat(place)
    except OSError as error:
        return f"{place}: {error.strerror}"
    if stat.S_ISLNK(info.st_mode):
        return f"{place} is a link, which any user may have created"
    if not stat.S_ISDIR(info.st_mode):
        return f"{place} is not a folder"
    if info.st_uid != os.geteuid():
        return f"{place} belongs to another user (uid {info.st_uid})"
    if info.st_mode & _OTHERS:
        return f"{place} is open to other users (mode {stat.S_IMODE(info.st_mode):o})"
    return ""


def make_own(
    path: str | os.PathLike[str],
    *,
    below: str | os.PathLike[str] | None = None,
    is_new: bool = False,
) -> None:
    """Create one of the user's own folders with mode 0700, whatever the umask. Close an existing one.

    With `below`, do the same for all folders between `below` and `path`. The user chose `below`, so it is
    created if it is missing, but its mode is never changed. With `is_new`, raise FileExistsError if `path`
    exists.
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
    """Raise EngineError if an existing folder belongs to another user."""
    try:
        fault = find_foreign_fault(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    except PermissionError as error:  # for example, `sudo` may leave folders of root in a home
        fault = f"{os.fspath(folder)}: {error.strerror}"
    if fault:
        from windlass.errors import EngineError

        raise EngineError(
            fault, hint="set WINDLASS_HOME to one of your own folders, or have this one removed"
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
    with contextlib.suppress(PermissionError):  # some file systems have no modes
        os.chmod(folder, 0o700)  # the umask may have removed bits


def _close(folder: str) -> None:
    """Close a folder to other users if the file system has modes."""
    if os.stat(folder).st_mode & _OTHERS:
        with contextlib.suppress(OSError):
            os.chmod(folder, 0o700)


def find_foreign_fault(path: str | os.PathLike[str], *, is_closed: bool = False) -> str:
    """Return a fault if a path belongs to another user, or an empty string if this user or root owns it.

    With `is_closed`, also refuse a path that other users may write to.
    """
    place = os.fspath(path)
    for info in (os.lstat(place), os.stat(place)):  # the link and its target
        if fault := _judge_owner(place, info):
            return fault
    return _judge_mode(place, info) if is_closed else ""


def find_owner_fault(file: int, path: str | os.PathLike[str]) -> str:
    """Return a fault if an open file belongs to another user, else an empty string.

    Checks the open file itself, because its path may name another file by now.
    """
    return _judge_owner(os.fspath(path), os.fstat(file))


def find_settings_fault(file: int, path: str | os.PathLike[str]) -> str:
    """Return why an open settings file cannot be trusted, or an empty string if it can.

    No other user may own the file or a link to it. It must also be a regular file, because a pipe or a
    device may never end.
    """
    place = os.fspath(path)
    fault = find_owner_fault(file, path) or _judge_owner(place, os.lstat(place))
    is_plain = stat.S_ISREG(os.fstat(file).st_mode)
    return fault or ("" if is_plain else f"{place} is not a plain file")


def find_file_fault(file: int, path: str | os.PathLike[str]) -> str:
    """Return why an open file must not be executed, or an empty string.

    Other users must neither own it nor be allowed to write to it.
    """
    return find_owner_fault(file, path) or _judge_mode(os.fspath(path), os.fstat(file))


def _judge_owner(place: str, info: os.stat_result) -> str:
    if info.st_uid in (os.geteuid(), _ROOT):
        return ""
    return f"{place} belongs to another user (uid {info.st_uid})"


def _judge_mode(place: str, info: os.stat_result) -> str:
    if info.st_mode & _OTHERS_WRITE:
        return f"other users may write to {place} (mode {stat.S_IMODE(info.st_mode):o})"
    return ""


def open_now(path: str, flags: int) -> int:
    """Open a file without blocking, because another user may have put a pipe there."""
    return os.open(path, flags | os.O_NONBLOCK)


def is_open_to_everybody(folder: str | os.PathLike[str]) -> bool:
    """Return whether all users may create files in a folder, as in /tmp."""
    try:
        return bool(os.stat(folder).st_mode & _ALL_MAY_WRITE)
    except OSError:  # an unreadable folder is not trusted
        return True


def find_peer_fault(connection: socket.socket) -> str:
    """Return a fault if the peer of a Unix socket is another user's process, else an empty string.

    The text is also empty if the system does not report the peer's user.
    """
    import socket
    import struct

    option = getattr(socket, "SO_PEERCRED", None)
    if option is None or connection.family != socket.AF_UNIX:
        return ""  # outside Linux, only the folder's owner and mode protect the socket
    credentials = struct.Struct("3i")
    packed = connection.getsockopt(socket.SOL_SOCKET, option, credentials.size)
    _, uid, _ = credentials.unpack(packed)
    return "" if uid in (os.geteuid(), _ROOT) else f"a process of another user (uid {uid}) listens"
