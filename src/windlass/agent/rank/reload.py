"""Modules of the project are never stale: how ranks import them, and how a kept rank reloads them.

Python trusts byte code whose source has the same size and the same second. An edit and a call can be closer
than that, so byte code of project files counts only if it was written after its source. Everything outside
the project is imported as ever.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

_Stamp = tuple[int, int]
_loaded: dict[str, _Stamp] = {}  # files of the project, as they were when they were loaded
_files: dict[str, str] = {}  # those of each module


class FreshLoader(importlib.machinery.SourceFileLoader):
    """Loads a file as it is now."""

    def get_code(self, fullname: str) -> types.CodeType | None:
        path = _files[fullname] = self.get_filename(fullname)
        _loaded[path] = stamp(path)  # before it is read: an edit meanwhile is a change
        if _is_compiled_later(path):
            return super().get_code(fullname)
        return self.source_to_code(self.get_data(path), path)

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Leave nothing beside the user's sources."""


def _is_compiled_later(path: str) -> bool:
    try:
        compiled = os.stat(importlib.util.cache_from_source(path)).st_mtime_ns
        return compiled > os.stat(path).st_mtime_ns
    except (OSError, NotImplementedError):
        return False


def import_freshly(roots: Iterable[str]) -> None:
    """From now on, import what lies below `roots` as it is on disk."""
    prefixes = tuple(os.path.join(os.path.abspath(root), "") for root in roots if root)
    if not prefixes:
        return
    details = [
        (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES),
        (FreshLoader, importlib.machinery.SOURCE_SUFFIXES),
        (importlib.machinery.SourcelessFileLoader, importlib.machinery.BYTECODE_SUFFIXES),
    ]
    make = importlib.machinery.FileFinder.path_hook(*details)

    def hook(path: str) -> Any:
        inside = os.path.join(os.path.abspath(path or "."), "")
        if not inside.startswith(prefixes) or "site-packages" in inside:
            raise ImportError("not of the project")
        return make(path)

    sys.path_hooks.insert(0, hook)
    for path in [p for p in sys.path_importer_cache if os.path.join(p, "").startswith(prefixes)]:
        del sys.path_importer_cache[path]


class Reloader:
    """Reloads in place what changed on disk, for ranks that are kept."""

    def __init__(self, root: str) -> None:
        roots = {os.path.abspath(root), os.path.realpath(root)} if root else set()
        self._prefixes = tuple(os.path.join(each, "") for each in roots)
        self._linked: list[str] = []  # files of the project that lie outside of it
        self._num_looked = 0  # so many files of modules were looked at for that
        self.is_broken = False  # a reload failed halfway
        self._order: dict[str, int] = {}  # of the last reload that was begun

    def reload(self) -> list[str]:
        """Reload all of the project that is loaded, if any of it changed; the names of what was.

        All of it, since a module that took a name from a changed one holds the old thing. Python keeps
        modules in the order in which their loading ended, so that what others import comes first. Those whose
        files are gone are forgotten: code that still wants one gets it elsewhere, or not at all.
        """
        own = self._own()
        if not self.is_broken and all(_loaded[path] == stamp(path) for _, path in own):
            return []
        if self.is_broken:  # one that failed halfway has changed Python's own order
            own.sort(key=lambda one: self._order.get(one[0], -1))
        self.is_broken = True  # until all of it has been reloaded
        self._order = {name: at for at, (name, _) in enumerate(own)}
        _forget_listings()
        for name, path in own:
            if not os.path.exists(path):
                del sys.modules[name]
        for name, _ in own:
            if name in sys.modules:
                importlib.reload(sys.modules[name])
        self.is_broken = False
        return [name for name, _ in own]

    def _own(self) -> list[tuple[str, str]]:
        loaded = [(name, _files[name]) for name in list(sys.modules) if name in _files]
        return [
            (name, path)
            for name, path in loaded
            if self._is_own(path) and getattr(sys.modules[name], "__file__", None) == path
        ]

    def _is_own(self, path: str) -> bool:
        """Whether a file belongs to the project, by its own path or by the path its links lead to."""
        return path.startswith(self._prefixes) or os.path.realpath(path).startswith(self._prefixes)

    def has_linked_edits(self) -> bool:
        """Whether a loaded file changed that a link leads to outside the project, which is not watched."""
        if len(_files) != self._num_looked:
            self._num_looked = len(_files)
            self._linked = [
                path
                for path in _files.values()
                if path.startswith(self._prefixes)
                and not os.path.realpath(path).startswith(self._prefixes)
            ]
        return any(_loaded[path] != stamp(path) for path in self._linked)


def _forget_listings() -> None:
    """Make Python list folders again. Not archives: listing them is slow, and they do not change."""
    for finder in list(sys.path_importer_cache.values()):
        if isinstance(finder, importlib.machinery.FileFinder):
            finder.invalidate_caches()


def stamp(path: str) -> _Stamp:
    """A value that changes whenever the file does; zeros for a file that is gone."""
    try:
        info = os.stat(path)
    except OSError:
        return (0, 0)
    return (info.st_mtime_ns, info.st_size)


def renew_class(thing: Any, find: Callable[[str], Any]) -> None:
    """Give an object the class of its name as it is after a reload."""
    cls = type(thing)
    module = find(cls.__module__)
    new = getattr(module, cls.__qualname__, None) if module is not None else None
    if isinstance(new, type) and new is not cls:
        thing.__class__ = new
