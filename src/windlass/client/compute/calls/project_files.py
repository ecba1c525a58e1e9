"""Project files of calls: files that changed since the last call, and files that nodes lack.

Nodes on this machine read the files themselves. Other nodes get the changed files with the call. A syntax
error in a changed module is raised here, before anything is sent.

On Linux, `Watch` asks the kernel (inotify) whether anything may have changed. If nothing was edited, a call
therefore reads no files. On other systems, files are checked before every call.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import io
import os
import socket
import sys
import threading
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from windlass.bundle.archive import write_archive
from windlass.bundle.collect import collect
from windlass.bundle.manifest import EMPTY, Manifest, make_delta
from windlass.bundle.scan import StatCache
from windlass.bundle.select import VENV_MARKER, find_root
from windlass.client.jobs.job_ids import make_letters
from windlass.client.jobs.packing import choose_root
from windlass.client.jobs.target import import_paths
from windlass.errors import SpecError
from windlass.wire.messages.calls import ProjectPlace
from windlass.wire.messages.computes import SyncCode

# IN_MODIFY, CLOSE_WRITE, MOVED_FROM, MOVED_TO, CREATE, DELETE, DELETE_SELF, MOVE_SELF, ATTRIB
_MASK = 0x2 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800 | 0x4
_NONBLOCK = os.O_NONBLOCK
_CLOEXEC = os.O_CLOEXEC
_READ_BYTES = 4096
MAX_FOLDERS = 2000
# magic numbers (statfs) of local file systems: inotify misses changes that other machines make
_LOCAL = frozenset(
    {0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x794C7630, 0xF2F52010, 0x2FC12FC1, 0x52654973}
)
_KEPT_MANIFESTS = 16


class Watch:
    """Watch on folders. `has_changed` reports changes since it was last called."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._fd: int | None = None
        self._libc = _load() if _is_local(root) else None
        self._folders: set[str] = set()
        self._is_dirty = True

    def follow(self, folders: Iterable[str]) -> bool:
        """Also watch these folders. Return whether any of them is new."""
        wanted = set(folders)
        is_new = not wanted <= self._folders
        self._add(wanted)
        return is_new

    def _add(self, wanted: set[str]) -> None:
        if self._libc is None or len(wanted) > MAX_FOLDERS:
            self.close()
            return
        if self._fd is None:
            fd = self._libc.inotify_init1(_NONBLOCK | _CLOEXEC)
            if fd < 0:
                return
            self._fd = fd
            # a user may have only 128 inotify instances on some systems, so free unused ones
            self._closing = weakref.finalize(self, os.close, fd)
        for folder in wanted - self._folders:
            if self._libc.inotify_add_watch(self._fd, os.fsencode(folder), _MASK) < 0:
                self.close()
                return
            self._folders.add(folder)

    def has_changed(self) -> bool:
        """Return whether anything may have changed since the previous call."""
        if self._fd is None:
            return True
        is_dirty, self._is_dirty = self._is_dirty, False
        try:
            while os.read(self._fd, _READ_BYTES):
                is_dirty = True
        except BlockingIOError:
            return is_dirty
        return True

    def close(self) -> None:
        """Stop watching. `has_changed` then always returns True."""
        if self._fd is not None:
            self._closing()
            self._fd = None
        self._folders.clear()


def _load() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    return libc if hasattr(libc, "inotify_init1") else None


def _is_local(root: Path) -> bool:
    """Return whether the kernel sees every change, which it does not on network file systems."""
    if not sys.platform.startswith("linux"):
        return False
    buffer = ctypes.create_string_buffer(256)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(root), buffer) != 0:
        return False
    return int.from_bytes(buffer.raw[:8], sys.byteorder) in _LOCAL


_projects: dict[tuple[Path, bool], Project] = {}
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})


def project_at(root: Path, *, travels: bool) -> Project:
    """Return the project of a folder, shared by all callers so that they see the same edits."""
    project = _projects.get((root, travels))
    return project or _projects.setdefault((root, travels), Project(root, travels=travels))


def _renew_all() -> None:
    for project in _projects.values():
        project.renew()


class Project:
    """Project folder, cached for the lifetime of this process."""

    def __init__(self, root: Path, *, travels: bool) -> None:
        self.root = root
        self.travels = travels
        self.key = _make_key(root) if travels else ""
        self._cache = StatCache()
        self._watch = Watch(root)
        self.renew()
        self._stamps: dict[str, tuple[int, int]] = {}
        self._real: dict[str, str] = {}  # paths of module files with links resolved
        self._manifest = EMPTY
        self._known: dict[str, Manifest] = {EMPTY.digest: EMPTY}
        self._num_changes = 0
        self.is_edited = False  # a module that this process has loaded was edited
        # inputs and result of the last `about`
        self._about: tuple[Any, ProjectPlace] = (None, ProjectPlace())

    def renew(self) -> None:
        """Reset the lock, version and watch, which a forked process would share with its parent."""
        self._lock = threading.Lock()
        self._born = make_letters(8)  # each process counts its own changes
        self._watch.close()

    @property
    def version(self) -> str:
        """Version of the code. Changes with every edit."""
        return self._manifest.digest if self.travels else f"{self._born}-{self._num_changes}"

    def refresh(self) -> None:
        """Check for changes. Raises SyntaxError for a module that no longer compiles."""
        with self._lock:  # a waiting thread then finds the changes already handled
            if self._watch.has_changed():
                self._look()

    def _look(self) -> None:
        self._num_changes += 1
        try:
            used = self._check_modules()
            if self.travels:
                self._scan()
            else:
                self._watch.follow(_find_folders(self.root) | used)
        except BaseException:
            self._watch.close()  # check again next time
            raise

    def _scan(self) -> None:
        self._manifest = collect(self.root, cache=self._cache).manifest
        folders = {str((self.root / entry.path).parent) for entry in self._manifest.entries}
        if self._watch.follow({str(self.root), *folders}):
            # catch changes between the first scan and the watch
            self._manifest = collect(self.root, cache=self._cache).manifest
        self._known[self._manifest.digest] = self._manifest
        while len(self._known) > _KEPT_MANIFESTS:
            del self._known[next(key for key in self._known if key != EMPTY.digest)]

    def _check_modules(self) -> set[str]:
        """Compile loaded modules of the project that changed. Return the folders of all loaded ones."""
        prefix, folders = os.path.join(os.path.realpath(self.root), ""), set()
        for module in list(sys.modules.values()):
            # not getattr: the `__getattr__` of some modules is slow for missing names
            path = getattr(module, "__dict__", {}).get("__file__")
            if not path or not path.endswith(".py"):
                continue
            real = self._real.get(path) or self._real.setdefault(path, os.path.realpath(path))
            if not path.startswith(prefix) and not real.startswith(prefix):
                continue
            folders |= {os.path.dirname(path), os.path.dirname(real)}
            stamped = _read_stamp(path)
            if self._stamps.get(path) != stamped:
                if path in self._stamps:
                    self.is_edited = True
                    compile(Path(path).read_bytes(), path, "exec")
                self._stamps[path] = stamped
        return folders

    def about(self, cwd: Path, working_dir: str) -> ProjectPlace:
        """Return the project's digest, folder and import paths, as the nodes see them."""
        digest = self._manifest.digest if self.travels else ""
        what = (cwd, working_dir, len(sys.path), digest)
        known, about = self._about
        if what != known:
            about = self._place(cwd, working_dir).replaced(digest=digest)
            self._about = (what, about)  # one assignment, because other threads call this too
        return about

    def _place(self, cwd: Path, working_dir: str) -> ProjectPlace:
        paths = [*import_paths()]
        if not self.travels:
            here = str(cwd / working_dir)
            return ProjectPlace(root=str(self.root), cwd=here, paths=paths)
        inside = [self._inside(path) for path in paths]
        here = working_dir or self._inside(str(cwd)) or "."
        own = [path for path in inside if path is not None]
        return ProjectPlace(key=self.key, cwd=here, paths=own or ["."])

    def _inside(self, path: str) -> str | None:
        resolved = Path(path).resolve()
        return str(resolved.relative_to(self.root)) if resolved.is_relative_to(self.root) else None

    def make_sync(self, has: str) -> tuple[SyncCode, bytes] | None:
        """Return the changes that update a node from digest `has`, or None if it is up to date."""
        if not self.travels or has == self._manifest.digest:
            return None
        base = self._known.get(has, EMPTY)
        delta = make_delta(base, self._manifest)
        packed = io.BytesIO()
        write_archive(self.root, delta, packed, level=1)
        about = SyncCode(project=self.key, base=delta.base, digest=delta.digest)
        return about, packed.getvalue()


class PlacedProject:
    """Project that another process deployed to the nodes. Its files need not exist locally."""

    def __init__(self, place: ProjectPlace) -> None:
        self._place = place
        self.root = Path(place.root or ".")
        self.key = place.key
        self.version = ""
        self.is_edited = False

    def refresh(self) -> None:
        """Do nothing: calls use whatever code is on the nodes."""

    def about(self, _cwd: Path, _working_dir: str) -> ProjectPlace:
        """Return the folder it was deployed to, with the code that is there now."""
        return self._place.replaced(digest="as is" if self.key else "")

    def make_sync(self, _has: str) -> tuple[SyncCode, bytes] | None:
        """Return None: there is nothing to send."""
        return None


def find_project(source: Path | None, cwd: Path, root: str) -> Path:
    """Return the folder `root`, else the project of the source, else that of the current folder."""
    if root:
        folder = Path(root).expanduser().resolve()
        if not folder.is_dir():
            raise SpecError(
                f"root={root!r} is not a folder", hint="set root to the project's folder"
            )
        return folder
    return find_root(cwd) if source is None else choose_root(source, cwd)


def _make_key(root: Path) -> str:
    text = f"{socket.gethostname()}\0{os.getuid()}\0{root}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _find_folders(root: Path) -> set[str]:
    """Return the folders to watch. Stops after MAX_FOLDERS, because larger projects are not watched.

    Links are not followed, because they may lead to data of any size. Ranks themselves check files that
    they loaded through a link.
    """
    folders: set[str] = set()
    todo = [str(root)]
    while todo and len(folders) <= MAX_FOLDERS:
        folder = todo.pop()
        folders.add(folder)
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            todo += [entry.path for entry in entries if _is_own_folder(entry)]
    return folders


def _is_own_folder(entry: os.DirEntry[str]) -> bool:
    if entry.name.startswith(".") or entry.name in _SKIPPED:
        return False
    return entry.is_dir(follow_symlinks=False) and not os.path.lexists(
        os.path.join(entry.path, VENV_MARKER)
    )


os.register_at_fork(after_in_child=_renew_all)


def _read_stamp(path: str) -> tuple[int, int]:
    """Return the file's modification time and size, or zeros if it is gone."""
    try:
        info = os.stat(path)
    except OSError:
        return (0, 0)
    return (info.st_mtime_ns, info.st_size)
