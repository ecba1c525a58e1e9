"""The files of a checkpoint: written and read with their hashes, and listed in a manifest.

A checkpoint is whole when its manifest is there and every file in it is as the manifest says: its size, its
hash. Hashing runs in threads, since hashlib lets other threads go on. torch's distributed checkpoint (DCP)
asks for streams through its FileSystemBase; ours hashes what goes through it, so that nothing is read again
to be hashed. Used by the modules of checkpoints; knows neither ranks nor plans.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import IO, Any

from torch.distributed.checkpoint.filesystem import FileSystemBase

from windlass.train.checkpoint.checkpoint_storage import Storage

MANIFEST = "manifest.json"
UNFINISHED = f"it has no {MANIFEST}: it was not written to its end"
FORMAT = 1
STEP_FOLDER = re.compile(r"step-(\d+)")
HALF_WRITTEN = re.compile(r"(step-\d+)\.(tmp|old|gone)-.*")
_HASH_THREADS = 4
_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """A file of a checkpoint, as it was written."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointManifest:
    """What makes a folder a checkpoint."""

    step: int
    epoch: int | None
    number: (
        int  # of this save among all of its run: a later one has a higher number, whatever its step
    )
    attempt: int
    world_size: int
    facts: Mapping[str, Any]
    files: Mapping[str, FileFacts]
    torch: str
    format: int = field(default=FORMAT)

    @property
    def folder(self) -> str:
        return f"step-{self.step}"


def write_manifest(storage: Storage, folder: str, manifest: CheckpointManifest) -> None:
    """Make a folder whole."""
    storage.write(f"{folder}/{MANIFEST}", json.dumps(asdict(manifest), indent=1).encode())


def read_manifest(storage: Storage, folder: str) -> CheckpointManifest:
    """A folder's manifest. Raises ValueError, which says what is wrong with it."""
    try:
        values = json.loads(storage.read(f"{folder}/{MANIFEST}"))
    except FileNotFoundError:
        raise ValueError(UNFINISHED) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"its {MANIFEST} cannot be read: {error}") from error
    return parse_manifest(values, folder)


def parse_manifest(values: Any, folder: str) -> CheckpointManifest:
    """Return the manifest that a folder's JSON says. Raises ValueError."""
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise ValueError(f"its {MANIFEST} is not of format {FORMAT}: another program wrote it")
    try:
        files = {name: FileFacts(**facts) for name, facts in values.pop("files").items()}
        manifest = CheckpointManifest(files=files, **values)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"its {MANIFEST} is damaged: {error}") from error
    if fault := _find_fault(manifest, folder):
        raise ValueError(f"its {MANIFEST} is damaged: {fault}")
    return manifest


def _find_fault(manifest: CheckpointManifest, folder: str) -> str:
    numbers = (manifest.step, manifest.number, manifest.world_size, manifest.attempt)
    if not all(type(number) is int for number in numbers):
        return "its step, number, attempt and world size are not whole numbers"
    if manifest.folder != folder.partition(".")[0]:
        return f"it is of {manifest.folder}"
    if not isinstance(manifest.facts, dict):
        return "its facts are no table"
    for name, facts in manifest.files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            return f"it names {name!r:.80}, which is outside of it"
        if type(facts.size) is not int or not isinstance(facts.sha256, str):
            return f"the size or the hash of {name!r:.80} is none"
    return ""


def read_manifests(
    storage: Storage, *, but: str = ""
) -> Iterator[tuple[str, CheckpointManifest | str]]:
    """Yield every folder with a checkpoint's name, with its manifest or what is wrong with it."""
    for folder in storage.names():
        if STEP_FOLDER.fullmatch(folder) and folder != but:
            try:
                yield folder, read_manifest(storage, folder)
            except ValueError as error:
                yield folder, str(error)


def read_replaced(storage: Storage) -> Iterator[tuple[str, CheckpointManifest]]:
    """Yield checkpoints that made place for another of their step, which is not there (yet)."""
    names = set(storage.names())
    for folder in sorted(names):
        match = HALF_WRITTEN.fullmatch(folder)
        if match is not None and match[2] == "old" and match[1] not in names:
            with contextlib.suppress(ValueError):
                yield folder, read_manifest(storage, folder)


def find_whole(storage: Storage, *, but: str = "") -> list[CheckpointManifest]:
    """Return the checkpoints that have a manifest, the newest first; their files are not looked at.

    but: a folder that is not even asked for, since a store may remember that it had no manifest.
    """
    manifests = [
        manifest
        for _, manifest in read_manifests(storage, but=but)
        if isinstance(manifest, CheckpointManifest)
    ]
    return sorted(manifests, key=lambda manifest: (manifest.number, manifest.step), reverse=True)


def find_size_faults(storage: Storage, folder: str, manifest: CheckpointManifest) -> list[str]:
    """Return the files of a folder that are missing, too short or too long."""
    faults = []
    for name, facts in manifest.files.items():
        size = storage.size(f"{folder}/{name}")
        if size is None:
            faults.append(f"{name} is missing")
        elif size != facts.size:
            faults.append(f"{name} has {size} bytes instead of {facts.size}")
    return faults


def find_hash_faults(
    storage: Storage, folder: str, manifest: CheckpointManifest, files: Sequence[str]
) -> list[str]:
    """Return those of these files whose content is not what was written."""

    def check(name: str) -> str | None:
        try:
            digest = hash_file(storage, f"{folder}/{name}")
        except OSError as error:
            return f"{name} cannot be read: {error}"
        return (
            None
            if digest == manifest.files[name].sha256
            else f"{name} is damaged (its hash differs)"
        )

    with ThreadPoolExecutor(_HASH_THREADS) as threads:
        return [fault for fault in threads.map(check, files) if fault is not None]


def hash_file(storage: Storage, name: str) -> str:
    """A file's SHA-256, in hex."""
    digest = hashlib.sha256()
    with storage.open(name, "rb") as stream:
        while chunk := stream.read(_READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


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
