"""Import and reload of the project's modules, so that ranks never run stale code.

Python accepts byte code if the size and the modification time, in seconds, of its source match. An edit and a
call may happen within one second. Byte code of project files is therefore used only if it is newer than its
source. Modules outside the project are imported as usual.
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
_loaded: dict[str, _Stamp] = {}  # stamp of each project file when it was loaded
_files: dict[str, str] = {}  # the file of each module


class FreshLoader(importlib.machinery.SourceFileLoader):
    """Source file loader that never uses stale byte code."""

    def get_code(self, fullname: str) -> types.CodeType | None:
        path = _files[fullname] = self.get_filename(fullname)
        _loaded[path] = stamp(path)  # before reading, so that a later edit counts as a change
        if _is_compiled_later(path):
            return super().get_code(fullname)
        return self.source_to_code(self.get_data(path), path)

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Write no byte code next to the user's sources."""


def _is_compiled_later(path: str) -> bool:
    try:
        compiled = os.stat(importlib.util.cache_from_source(path)).st_mtime_ns
        return compiled > os.stat(path).st_mtime_ns
    except (OSError, NotImplementedError):
        return False


def import_freshly(roots: Iterable[str]) -> None:
    """Import files below `roots` with `FreshLoader` from now on."""
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
            raise ImportError("not part of the project")
        return make(path)

    sys.path_hooks.insert(0, hook)
    for path in [p for p in sys.path_importer_cache if os.path.join(p, "").startswith(prefixes)]:
        del sys.path_importer_cache[path]


class Reloader:
    """Reloader of changed modules in ranks that are kept."""

    def __init__(self, root: str) -> None:
        roots = {os.path.abspath(root), os.path.realpath(root)} if root else set()
        self._prefixes = tuple(os.path.join(each, "") for each in roots)
        self._linked: list[str] = []  # files in the project that link to files outside it
        self._num_looked = 0  # number of module files checked for such links
        self.is_broken = False  # a reload failed halfway
        self._order: dict[str, int] = {}  # module order of the last reload that started

    def reload(self) -> list[str]:
        """Reload all loaded modules of the project if any of them changed. Return their names.

        All are reloaded, because a module that imported a name from a changed module keeps the old object.
        Python keeps modules in the order in which they finished loading, so imported modules come first.
        Modules whose files were deleted are removed from `sys.modules`, and code that still imports one finds
        it elsewhere or fails.
        """
        own = self._own()
        if not self.is_broken and all(_loaded[path] == stamp(path) for _, path in own):
            return []
        if self.is_broken:  # a partial reload has changed Python's order
            own.sort(key=lambda one: self._order.get(one[0], -1))
        self.is_broken = True  # until all modules have been reloaded
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
        """Return whether a file belongs to the project, by its own path or by its resolved path."""
        return path.startswith(self._prefixes) or os.path.realpath(path).startswith(self._prefixes)

    def has_linked_edits(self) -> bool:
        """Return whether a loaded file that links outside the project changed. The client cannot watch it."""
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
    """Clear Python's cached listings of folders, but not of archives, which are slow and do not change."""
    for finder in list(sys.path_importer_cache.values()):
        if isinstance(finder, importlib.machinery.FileFinder):
            finder.invalidate_caches()


def stamp(path: str) -> _Stamp:
    """Return a value that changes whenever the file does, or zeros if it does not exist."""
    try:
        info = os.stat(path)
    except OSError:
        return (0, 0)
    return (info.st_mtime_ns, info.st_size)


def renew_class(thing: Any, find: Callable[[str], Any]) -> None:
    """Set the class of an object to the reloaded class of the same name."""
    cls = type(thing)
    module = find(cls.__module__)
    new = getattr(module, cls.__qualname__, None) if module is not None else None
    if isinstance(new, type) and new is not cls:
        thing.__class__ = new
