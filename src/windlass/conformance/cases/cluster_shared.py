"""A folder that a job's ranks and its test can both access, wherever the ranks run.

Ranks use `path` as an ordinary folder, and the test uses the methods. On one machine it is a local folder, on
a cluster a folder of a claim.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Protocol

from cluster_files import ROOT, Files

from windlass.waiting import wait_until

_WAIT_S = 120.0


class SharedFolder(Protocol):
    """Interface of the folder that the test and its ranks share."""

    @property
    def path(self) -> str:
        """Path of the folder for the ranks."""

    def touch(self, name: str) -> None: ...

    def exists(self, name: str) -> bool: ...

    def read(self, name: str) -> str: ...

    def names(self) -> set[str]: ...

    def wait_for(self, *names: str) -> None:
        """Wait until all these files exist."""


class LocalFolder:
    """Folder on this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()

    @property
    def path(self) -> str:
        return str(self._folder)

    def touch(self, name: str) -> None:
        (self._folder / name).touch()

    def exists(self, name: str) -> bool:
        return (self._folder / name).exists()

    def read(self, name: str) -> str:
        return (self._folder / name).read_text()

    def names(self) -> set[str]:
        return {path.name for path in self._folder.iterdir()}

    def wait_for(self, *names: str) -> None:
        _wait_for(self, names, every_s=0.01)


class ClusterFolder:
    """Folder of a claim."""

    def __init__(self, files: Files, name: str) -> None:
        self._files = files
        self._folder = f"/{name}"
        files.write(f"{self._folder}/.here")

    @property
    def path(self) -> str:
        return ROOT + self._folder

    def touch(self, name: str) -> None:
        self._files.write(f"{self._folder}/{name}")

    def exists(self, name: str) -> bool:
        return self._files.read(f"{self._folder}/{name}") is not None

    def read(self, name: str) -> str:
        found = self._files.read(f"{self._folder}/{name}")
        assert found is not None, f"there is no {name}"
        return found.decode()

    def names(self) -> set[str]:
        found = self._files.list(self._folder)
        return {name for name in found if not name.startswith(".")}

    def wait_for(self, *names: str) -> None:
        _wait_for(self, names, every_s=0.05)


def make_shared(files: Files | None, folder: Path) -> SharedFolder:
    """Create a folder for one test: in the claim of `files`, or below `folder` without one."""
    if files is None:
        return LocalFolder(folder / "shared")
    return ClusterFolder(files, secrets.token_hex(4))


def _wait_for(folder: SharedFolder, names: tuple[str, ...], *, every_s: float) -> None:
    do_exist = wait_until(lambda: set(names) <= folder.names(), timeout_s=_WAIT_S, every_s=every_s)
    assert do_exist, f"after {_WAIT_S} s only {folder.names()} of {names}"
