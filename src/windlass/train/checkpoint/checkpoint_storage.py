"""Checkpoint storage with the same interface for a local folder and an fsspec URL.

Names are relative to the root and use slashes. A folder in a file system is renamed to its final name. An
object store cannot rename, so a checkpoint there is written under its final name. Its manifest is written
last and makes it complete. The trainer and its writer process both use this module.

Any user of the machine may have created a run in a shared folder. `find_foreign` finds paths that other users
own. It accepts files of this user and of root. It also accepts the owner that the file system gives to new
files of this process, because network file systems map users. Object stores have no owners, so only the
rules of the bucket apply there.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pwd
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, TypeAlias

from windlass.errors import SpecError

_ROOT = 0


def open_storage(root: str | os.PathLike[str]) -> Storage:
    """Return the storage for a path or an fsspec URL."""
    text = os.fspath(root)
    return UrlStorage(text) if "://" in text else FolderStorage(text)


def find_free_name(root: str) -> str:
    """Return the first unused root among runs/a.old-1, runs/a.old-2 and so on, for the root runs/a."""
    number = 1
    while open_storage(f"{root}.old-{number}").names():
        number += 1
    return f"{root}.old-{number}"


class FolderStorage:
    """A folder of a file system."""

    can_rename = True  # a folder gets its final name atomically
    is_of_this_process = False  # other processes can access it, including the writer process

    def __init__(self, root: str) -> None:
        self.root = str(Path(root).absolute())
        self._root = Path(self.root)
        self.local_path: Path | None = self._root

    def make_root(self) -> None:
        """Create the root folder if it is missing."""
        self._root.mkdir(parents=True, exist_ok=True)

    def move_root(self, new_root: str) -> None:
        """Rename the root folder. This object's root does not exist afterwards."""
        self._root.rename(new_root)
        _sync_folder(self._root.parent)

    def make_folder(self, name: str) -> None:
        """Create a folder in the root, which must exist. Does nothing in an object store."""
        (self._root / name).mkdir(exist_ok=True)

    def has_folder(self, name: str) -> bool:
        """Return whether a folder exists. An object store has no folders and always returns True."""
        return (self._root / name).is_dir()

    @contextlib.contextmanager
    def open(self, name: str, mode: str) -> Iterator[IO[bytes]]:
        """Open a file for reading ("rb") or writing ("wb").

        Writing creates at most a subfolder of an existing folder. If the folder itself was removed,
        this raises instead of creating an empty one.
        """
        path = self._root / name
        if "w" in mode:
            self._make_parent(path)
        with path.open(mode) as stream:
            yield stream

    def _make_parent(self, path: Path) -> None:
        if path.parent not in (self._root, self._root / path.relative_to(self._root).parts[0]):
            path.parent.mkdir(exist_ok=True)

    def write(self, name: str, data: bytes) -> None:
        """Write a small file atomically."""
        path = self._root / name
        self._make_parent(path)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            with part.open("wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError:
            part.unlink(missing_ok=True)
            raise
        if path.is_symlink():
            path.unlink()
        part.replace(path)
        _sync_folder(path.parent)

    def read(self, name: str) -> bytes:
        """Return the content of a small file."""
        return (self._root / name).read_bytes()

    def names(self) -> list[str]:
        """Return the names of the files, links and folders directly in the root."""
        try:
            return sorted(os.listdir(self._root))
        except FileNotFoundError:
            return []

    def size(self, name: str) -> int | None:
        """Return the size of a file, or None if it does not exist."""
        try:
            return (self._root / name).stat().st_size
        except OSError:
            return None

    def move(self, name: str, new_name: str) -> None:
        """Rename a folder."""
        (self._root / name).rename(self._root / new_name)
        _sync_folder(self._root)

    def rename_file(self, name: str, new_name: str) -> None:
        """Rename a file."""
        (self._root / name).replace(self._root / new_name)

    def remove(self, name: str) -> None:
        """Remove a file, a link or a folder with its contents, if it exists."""
        path = self._root / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    def point(self, name: str, target: str) -> None:
        """Make `name` a link to its sibling folder `target`, or a file that contains the target's name."""
        link = self._root / f".{name}.{os.getpid()}.link"
        link.unlink(missing_ok=True)
        try:
            link.symlink_to(target)
            link.replace(self._root / name)
        except OSError:  # no symbolic links, as on some mounts of object stores
            link.unlink(missing_ok=True)
            self.write(name, target.encode())

    def target(self, name: str) -> str | None:
        """Return the target of a link, or None if the link does not exist."""
        path = self._root / name
        if path.is_symlink():
            return os.readlink(path)
        return path.read_text().strip() if path.is_file() else None


class UrlStorage:
    """Storage at an fsspec URL, such as s3://bucket/folder, memory://folder or file:///folder."""

    can_rename = False

    def __init__(self, root: str) -> None:
        try:
            fsspec: Any = importlib.import_module("fsspec")
        except ModuleNotFoundError as error:
            raise SpecError(
                f"a checkpoint folder with a URL ({root}) needs fsspec, which is not installed",
                hint="run `pip install fsspec` (and s3fs for s3://), or use a local path",
            ) from error
        self.root = root.rstrip("/")
        self._files: Any
        try:
            self._files, self._prefix = fsspec.core.url_to_fs(self.root)
        except (ImportError, ValueError) as error:  # missing driver or unknown scheme
            raise SpecError(f"fsspec cannot open {root}: {error}") from error
        self.is_of_this_process = self.root.startswith("memory://")
        is_local = self.root.startswith(("file://", "local://"))
        self.local_path = Path(self._prefix) if is_local else None

    def make_root(self) -> None:
        """Do nothing, because an object store creates folders with their first object."""

    def move_root(self, new_root: str) -> None:
        self._files.invalidate_cache()
        self._files.mv(self._prefix, self._files._strip_protocol(new_root), recursive=True)  # noqa: SLF001

    def make_folder(self, name: str) -> None:
        """Do nothing, because an object store creates folders with their first object."""

    def has_folder(self, name: str) -> bool:  # noqa: ARG002 - same signature as FolderStorage
        return True

    def _path(self, name: str) -> str:
        return f"{self._prefix.rstrip('/')}/{name}"

    @contextlib.contextmanager
    def open(self, name: str, mode: str) -> Iterator[IO[bytes]]:
        path = self._path(name)
        if "w" in mode:
            self._files.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        with self._files.open(path, mode) as stream:
            yield stream

    def write(self, name: str, data: bytes) -> None:
        path = self._path(name)
        self._files.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        self._files.pipe_file(path, data)

    def read(self, name: str) -> bytes:
        self._files.invalidate_cache()
        return bytes(self._files.cat_file(self._path(name)))

    def names(self) -> list[str]:
        self._files.invalidate_cache()
        try:
            entries = self._files.ls(self._prefix, detail=False)
        except FileNotFoundError:
            return []
        return sorted(entry.rstrip("/").rsplit("/", 1)[-1] for entry in entries)

    def size(self, name: str) -> int | None:
        self._files.invalidate_cache()
        try:
            facts = self._files.info(self._path(name))
        except FileNotFoundError:
            return None
        return int(facts.get("size") or 0)

    def move(self, name: str, new_name: str) -> None:
        self._files.mv(self._path(name), self._path(new_name), recursive=True)

    def rename_file(self, name: str, new_name: str) -> None:
        self._files.mv(self._path(name), self._path(new_name))

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.rm(self._path(name), recursive=True)

    def point(self, name: str, target: str) -> None:
        self.write(name, target.encode())

    def target(self, name: str) -> str | None:
        try:
            return self.read(name).decode().strip()
        except (FileNotFoundError, IsADirectoryError):
            return None


Storage: TypeAlias = FolderStorage | UrlStorage


def _sync_folder(path: Path) -> None:
    """Make renames in this folder survive a power failure, if the file system supports that."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def find_foreign(storage: Storage, names: Iterable[str]) -> str:
    """Return an error message for the first name that another user owns, or "" if there is none.

    Names are relative to the root, and "" is the root itself.
    """
    root = storage.local_path
    if root is None:
        return ""
    own = {os.geteuid(), _ROOT}
    is_probed = False
    for name in names:
        path = root / name if name else root
        for uid in _owners(path):
            if uid not in own and not is_probed:
                own |= _probe(root)
                is_probed = True
            if uid not in own:
                return f"{path} belongs to {_name_user(uid)}, not to {_name_user(os.geteuid())}"
    return ""


def _owners(path: Path) -> set[int]:
    """Return the owners of a path and, if it is a link, of its target. Empty if the path does not exist."""
    owners = set()
    for follow in (False, True):
        with contextlib.suppress(OSError):
            owners.add(os.stat(path, follow_symlinks=follow).st_uid)
    return owners


def _probe(folder: Path) -> set[int]:
    """Return the owner that the file system gives to new files of this process."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return {os.fstat(file.fileno()).st_uid}
    except OSError:
        return set()


def _name_user(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"
