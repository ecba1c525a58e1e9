"""Snapshot of the modules that an import loads: the byte code of every source file, in one file.

An import of torch finds, opens and checks a thousand files one by one, which takes a tenth of its time. The
snapshot holds the byte code of all of them. Each entry has the modification time and size of its source,
which are checked as Python checks its own byte code. The snapshot also records the modification times of the
folders on `sys.path`, because a change there may mean that other files would be found. Modules that do not
match are imported as usual, and the snapshot is rewritten. Only the fork server uses it, and only if a cache
folder is set.
"""

from __future__ import annotations

import contextlib
import importlib
import marshal
import os
import sys
import zlib
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any

from windlass import names
from windlass.trusted import find_file_fault
from windlass.wire.job_folder import write_atomically

_MAX_SNAPSHOTS = 4  # per module, one for each environment

# origin, whether it is a package, mtime in ns and size of the source, byte code
_Entry = tuple[str, bool, int, int, bytes]


def import_module(name: str) -> None:
    """Import a module, from its snapshot if that is valid."""
    cache = os.environ.get(names.IMPORT_CACHE, "")
    if not cache or name in sys.modules:
        importlib.import_module(name)
        return
    # without Windlass's archive, whose name changes with each version (`_folders` includes it)
    found_in = [folder for folder in sys.path if not folder.endswith(".pyz")]
    key = zlib.crc32(repr((sys.version, found_in)).encode())
    path = Path(cache, f"import-{name}-{key:08x}.bin")
    finder = _Finder(_read(path))
    before = set(sys.modules)
    sys.meta_path.insert(0, finder)
    try:
        importlib.import_module(name)
    finally:
        sys.meta_path.remove(finder)
    loaded = [module for module in sys.modules if module not in before]
    if finder.num_misses or not finder.entries:
        # no snapshot if the disk is full or read-only
        with contextlib.suppress(OSError, ValueError):
            write_atomically(path, marshal.dumps((_folders(), _collect(loaded))))
            _prune(path.parent, name)


def _prune(cache: Path, name: str) -> None:
    """Remove the least recently used snapshots of a module. A snapshot of torch takes 20 MB."""
    snapshots = sorted(
        cache.glob(f"import-{name}-????????.bin"), key=lambda path: path.stat().st_mtime
    )
    for path in snapshots[:-_MAX_SNAPSHOTS]:
        path.unlink(missing_ok=True)


class _Finder:
    """Finder that loads modules from a snapshot, without a search for their files."""

    def __init__(self, entries: dict[str, _Entry]) -> None:
        self.entries = entries
        self.num_misses = 0

    def find_spec(
        self, name: str, _path: object = None, _target: object = None
    ) -> ModuleSpec | None:
        entry = self.entries.get(name)
        if entry is None:
            return None
        origin, is_package, mtime_ns, size_bytes, code = entry
        try:
            info = os.stat(origin)
        except OSError:
            info = None
        if info is None or (info.st_mtime_ns, info.st_size) != (mtime_ns, size_bytes):
            self.num_misses += 1
            return None
        spec = ModuleSpec(name, _Loader(name, origin, code), origin=origin, is_package=is_package)
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations = [os.path.dirname(origin)]
        return spec


class _Loader(SourceFileLoader):
    """Source file loader whose bytecode is already in memory."""

    def __init__(self, name: str, path: str, code: bytes) -> None:
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname: str) -> Any:  # noqa: ARG002 - Python defines the signature
        return marshal.loads(self._code)  # noqa: S302 - from a folder that the user owns, like any .pyc


def _read(path: Path) -> dict[str, _Entry]:
    try:
        with path.open("rb") as file:
            if fault := find_file_fault(file.fileno(), path):
                import logging  # imported late, because ranks inherit all imports of this process

                logging.getLogger(__name__).warning("%s; it is not used", fault)
                return {}
            folders, entries = marshal.loads(file.read())  # noqa: S302 - as above
        os.utime(path)  # marks it as recently used, for `_prune`
    except (OSError, ValueError, EOFError, TypeError):
        return {}
    return entries if folders == _folders() else {}


def _folders() -> list[tuple[str, int]]:
    """Return the folders on `sys.path` and their modification times."""
    stamps = []
    for path in sys.path:
        with contextlib.suppress(OSError):
            stamps.append((path, os.stat(path).st_mtime_ns))
    return stamps


def _collect(modules: list[str]) -> dict[str, _Entry]:
    entries = {}
    for name in modules:
        spec: ModuleSpec | None = getattr(sys.modules.get(name), "__spec__", None)
        if spec is None or spec.origin is None or not isinstance(spec.loader, SourceFileLoader):
            continue
        folders = spec.submodule_search_locations
        if spec.name == name and (
            folders is None or list(folders) == [os.path.dirname(spec.origin)]
        ):
            info = os.stat(spec.origin)
            code = marshal.dumps(spec.loader.get_code(name))
            is_package = folders is not None
            entries[name] = (spec.origin, is_package, info.st_mtime_ns, info.st_size, code)
    return entries
