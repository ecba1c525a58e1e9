"""Layout of a job's folder. The agent writes it, engines and clients read it.

It only has paths and atomic writes. `status`, `results` and `log_files` define the file contents.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from windlass import names
from windlass.trusted import make_own

_ATTEMPT = re.compile(r"attempt-([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class JobFolder:
    """Paths inside one job's folder."""

    path: Path

    @property
    def plan(self) -> Path:
        return self.path / names.PLAN_FILE

    @property
    def payload(self) -> Path:
        return self.path / names.PAYLOAD_FILE

    @property
    def bundle(self) -> Path:
        return self.path / names.BUNDLE_FILE

    @property
    def code(self) -> Path:
        return self.path / "code"

    @property
    def status(self) -> Path:
        return self.path / names.STATUS_FILE

    @property
    def reserve(self) -> Path:
        """File that reserves disk space for the final status, in case the disk is full by then."""
        return self.path / "status.reserve"

    @property
    def lead_lock(self) -> Path:
        return self.path / names.LEAD_LOCK_FILE

    @property
    def sockets(self) -> Path:
        return self.path / names.SOCKETS_FILE

    def agent_log(self, node: int) -> Path:
        return self.path / f"agent-{node}.log"

    def gpus(self, node: int) -> Path:
        """Return the file that lists a local node's GPUs. It does not exist if none were requested."""
        return self.path / f"gpus-{node}"

    def attempt(self, attempt: int) -> Path:
        return self.path / f"attempt-{attempt}"

    def make_attempt(self, attempt: int) -> None:
        make_own(self.attempt(attempt))

    def attempts(self) -> list[int]:
        """Return the attempts that have a folder, oldest first."""
        matches = (_ATTEMPT.fullmatch(entry.name) for entry in self.path.glob("attempt-*"))
        return sorted(int(attempt[1]) for attempt in matches if attempt)

    def world(self, attempt: int) -> Path:
        return self.attempt(attempt) / names.WORLD_FILE

    def log(self, attempt: int, rank: int) -> Path:
        """Return the log of a rank, or of a node's own processes if the number is negative."""
        name = f"rank-{rank}.log" if rank >= 0 else f"node-{-1 - rank}.log"
        return self.attempt(attempt) / name

    def result(self, attempt: int, rank: int) -> Path:
        return self.attempt(attempt) / f"rank-{rank}.result"

    def error(self, attempt: int, rank: int) -> Path:
        return self.attempt(attempt) / f"rank-{rank}.error.json"


def write_atomically(path: Path, *chunks: bytes, is_durable: bool = False) -> None:
    """Write a temporary file beside `path` and rename it, so that readers never see a partial file.

    With `is_durable`, the file also survives a power failure. Final statuses and results need that.
    """
    with _written_beside(path, chunks, is_durable=is_durable) as beside:
        beside.replace(path)
    if is_durable:
        sync_name(path)


def sync_name(path: Path) -> None:
    """Make the name of a new or renamed file survive a power failure."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with contextlib.suppress(
            OSError
        ):  # some file systems cannot sync a folder and do not need it
            os.fsync(folder)
    finally:
        os.close(folder)


def write_once(path: Path, *chunks: bytes) -> None:
    """Write like `write_atomically`, but keep an existing file. The first of several writers wins."""
    with _written_beside(path, chunks) as beside:
        with contextlib.suppress(FileExistsError):
            os.link(beside, path)
        beside.unlink()


def _open_private(path: str, flags: int) -> int:
    """Open a file with mode 0600, whatever the umask."""
    return os.open(path, flags, 0o600)


@contextlib.contextmanager
def _written_beside(
    path: Path, chunks: Iterable[bytes], *, is_durable: bool = False
) -> Iterator[Path]:
    beside = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        with open(beside, "wb", opener=_open_private) as file:
            file.writelines(chunks)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        yield beside
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
