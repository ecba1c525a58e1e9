"""Putting files into a folder without ever leaving it: every step is taken from an open folder.

No path is handed to the system as a whole and no link is followed on the way, so neither a crafted
bundle nor a link that the user's code left behind can lead a write elsewhere. Used by `extract`;
standard library only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from windlass.bundle.paths import parents_of, shown
from windlass.errors import BundleError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CACHE_FOLDER = "__pycache__"


class OpenFolder:
    """An open folder and a staging folder inside it; `path` arguments are bundle paths."""

    def __init__(self, dest: Path, stage: Path) -> None:
        self.dest = Path(os.path.realpath(dest))
        self._root = os.open(self.dest, _FOLDER)
        try:
            self._stage = os.open(stage, _FOLDER)
        except OSError:
            os.close(self._root)
            raise

    def close(self) -> None:
        """Close both folders."""
        os.close(self._stage)
        os.close(self._root)

    def open_staged(self, name: str) -> int:
        """A new file in the staging folder, open for writing, private until it is renamed."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=self._stage)

    def put(self, name: str, path: str) -> None:
        """Rename the staged file `name` to `path`, over whatever file or link is there."""
        with self._parent(path, create=True) as (folder, leaf):
            self._clear_folder(folder, leaf)
            try:
                os.replace(name, leaf, src_dir_fd=self._stage, dst_dir_fd=folder)
            except IsADirectoryError as error:
                raise BundleError(
                    f"{shown(path)} is a folder with other files in {self.dest}",
                    hint="move what is in the folder away, or start with a fresh one",
                ) from error

    def link(self, name: str, path: str, target: str) -> None:
        """Make `path` a link to `target`, which must end inside the folder as it is on disk now."""
        reached = os.path.realpath(self.dest / path.rpartition("/")[0] / target)
        if not Path(reached).is_relative_to(self.dest):
            raise BundleError(
                f"the link {shown(path)} would leave {self.dest}, to {shown(reached)}",
                hint="leave the link out with .windlassignore",
            )
        os.symlink(target, name, dir_fd=self._stage)
        self.put(name, path)

    def remove(self, path: str) -> None:
        """Unlink `path` and the folders that are empty without it; gone already is fine."""
        try:
            with self._parent(path, create=False) as (folder, leaf):
                os.unlink(leaf, dir_fd=folder)
        except FileNotFoundError:
            pass
        for above in parents_of(path):
            try:
                with self._parent(above, create=False) as (folder, leaf):
                    if not self._clear_folder(folder, leaf):
                        return
            except FileNotFoundError:
                pass

    @contextlib.contextmanager
    def _parent(self, path: str, *, create: bool) -> Iterator[tuple[int, str]]:
        """The open folder that holds `path`, and the last part of its name."""
        *above, leaf = path.split("/")
        folder = os.dup(self._root)
        try:
            for part in above:
                if create:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=folder)
                inner = self._enter(folder, part, path)
                os.close(folder)
                folder = inner
            yield folder, leaf
        finally:
            os.close(folder)

    def _enter(self, folder: int, part: str, path: str) -> int:
        try:
            return os.open(part, _FOLDER, dir_fd=folder)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise BundleError(
                f"cannot reach {shown(path)}: {shown(part)} in {self.dest} is not a plain folder",
                hint="move the link or file away, or start with a fresh folder",
            ) from error

    def _clear_folder(self, folder: int, leaf: str) -> bool:
        """Remove the folder `leaf` if nothing but compiled Python is in it; whether it is gone."""
        try:
            inner = os.open(leaf, _FOLDER, dir_fd=folder)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        try:
            if [entry.name for entry in os.scandir(inner)] == [_CACHE_FOLDER]:
                self._clear_cache(inner)
            os.rmdir(leaf, dir_fd=folder)
        except OSError:
            return False
        finally:
            os.close(inner)
        return True

    def _clear_cache(self, folder: int) -> None:
        cache = os.open(_CACHE_FOLDER, _FOLDER, dir_fd=folder)
        try:
            names = [entry.name for entry in os.scandir(cache)]
            if all(name.endswith(".pyc") for name in names):
                for name in names:
                    os.unlink(name, dir_fd=cache)
                os.rmdir(_CACHE_FOLDER, dir_fd=folder)
        finally:
            os.close(cache)
