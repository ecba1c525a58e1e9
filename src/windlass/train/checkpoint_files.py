"""Files of a checkpoint as torch's distributed checkpoint (DCP) writes and reads them, in any storage.

DCP asks for streams through its FileSystemBase; ours hashes what goes through it, so that nothing is read
again to be hashed. Used by checkpoint_shards.py and checkpoint_commit.py; knows neither ranks nor plans.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Iterator
from typing import IO, Any

from torch.distributed.checkpoint.filesystem import FileSystemBase

from windlass.train.checkpoint_manifest import FileFacts
from windlass.train.checkpoint_storage import Storage


class HashedFiles(FileSystemBase):
    """The files of one folder of a storage; `facts` has those that were written."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self.facts: dict[str, FileFacts] = {}
        self._storage = storage
        self._folder = folder

    def save(self, name: str, data: bytes) -> None:
        """Write one small file, to the disk where there is one."""
        with self.create_stream(name, "wb") as stream:
            stream.write(data)
            if self._storage.can_rename:  # an object store has no fsync
                stream.flush()
                os.fsync(stream.fileno())

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        name = os.fspath(path)
        with self._storage.open(f"{self._folder}/{name}", mode) as stream:
            if "r" in mode:
                yield stream
                return
            hashed = HashingStream(stream)
            yield hashed
            if not stream.closed:
                stream.flush()
        self.facts[name] = hashed.facts

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        return f"{os.fspath(path)}/{suffix}".lstrip("/")

    def init_path(self, path: str | os.PathLike[str]) -> str | os.PathLike[str]:
        return path

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        name, new_name = os.fspath(path), os.fspath(new_path)
        self._storage.rename_file(f"{self._folder}/{name}", f"{self._folder}/{new_name}")
        self.facts[new_name] = self.facts.pop(name)

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Do nothing: a rank's folder is made with the first file in it."""

    def exists(self, path: str | os.PathLike[str]) -> bool:
        """Return whether this writer has written the file; nothing else writes to its folder."""
        return os.fspath(path) in self.facts

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        self._storage.remove(f"{self._folder}/{os.fspath(path)}")

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003
        return True


class HashingStream(io.RawIOBase):
    """Passes on what is written, and knows its size and hash; written from front to back only."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__()
        self._stream = stream
        self._sha256 = hashlib.sha256()
        self._size = 0

    @property
    def facts(self) -> FileFacts:
        return FileFacts(size=self._size, sha256=self._sha256.hexdigest())

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._stream.write(view)
        self._sha256.update(view)
        self._size += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        if not self._stream.closed:
            self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()
