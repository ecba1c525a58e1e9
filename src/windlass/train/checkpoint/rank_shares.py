"""A rank's share of a checkpoint, planned, written and read with torch's distributed checkpoint (DCP).

`SavePlans` decides with all ranks who writes what. `write_share` writes this rank's part under `rank-R/` and
a record of it in a file, so that rank 0 can commit. It needs no other rank, and runs in the trainer or in its
writer process. `ShareReader` reads the tensors that this rank needs, however many ranks wrote the shares.

DCP requests streams from its FileSystemBase. `HashedFiles` hashes the data while it is written, so that no
file is read again for its hash.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemBase, _StorageInfo, _StoragePrefix
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    BytesIOWriteData,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult

from windlass.errors import EngineError
from windlass.train.checkpoint.checkpoint_manifest import CheckpointManifest, FileFacts
from windlass.train.checkpoint.checkpoint_storage import Storage, open_storage
from windlass.train.checkpoint.state_encoding import (
    decode,
    encode,
    load_entry,
    load_metadata,
    record,
)
from windlass.train.checkpoint.training_state import SavedTensor

if TYPE_CHECKING:
    from windlass.train.parallel.context import Context

METADATA = ".metadata"  # DCP's own index of the tensors
RNG = "rng.pt"
_PICKLE = b"\x80"  # first byte of an entry pickled by an earlier version
_MANY_BYTES = 256 << 20  # larger shares are split into files, one per thread
_THREADS = 4


for _kind in (
    *(SavePlan, WriteItem, WriteItemType, TensorWriteData, BytesIOWriteData),
    *(ChunkStorageMetadata, MetadataIndex, TensorProperties),
    *(FileFacts, WriteResult, _StorageInfo),
):
    record(_kind)


# Plans.


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSave:
    """This rank's part of a save, with its data still in the original objects."""

    plan: SavePlan
    metadata: Metadata
    data: dict[MetadataIndex, torch.Tensor | bytes]

    @property
    def num_bytes(self) -> int:
        return sum(
            len(value) if isinstance(value, bytes) else value.nbytes for value in self.data.values()
        )


class SavePlans:
    """Planner of saves with DCP. Reuses the last plan while the state's structure is unchanged.

    Ranks that hold copies of the same state (DDP) each write only a part of it. Every rank computes the whole
    plan from the local plans of all ranks.
    """

    def __init__(self) -> None:
        self._local: SavePlan | None = None
        self._own: SavePlan | None = None
        self._metadata: Metadata | None = None
        self._planner = DefaultSavePlanner(flatten_state_dict=False)

    def set_state(self, table: dict[str, Any], *, rank: int) -> bool:
        """Plan this rank's part of a state's table. Return whether its last plan still fits."""
        self._planner = DefaultSavePlanner(flatten_state_dict=False)
        self._planner.set_up_planner(table, is_coordinator=rank == 0)
        local = self._planner.create_local_plan()
        is_known = self._local is not None and local.items == self._local.items
        self._local = local
        return is_known

    def plan(self, context: Context, *, is_known: bool) -> PlannedSave:
        """Return the plan for the state. If `is_known` is true on all ranks, they exchange nothing."""
        if not is_known or self._own is None or self._metadata is None:
            texts = context.gather(encode(self._local, name="plan").decode())
            local = [decode(text, name="plan") for text in texts]
            plans, self._metadata = self._planner.create_global_plan(local)
            self._own = plans[context.rank]
        data = {}
        for item in self._own.items:
            value = self._planner.resolve_data(item)
            data[item.index] = (
                value.detach() if isinstance(value, torch.Tensor) else value.getvalue()
            )
        return PlannedSave(plan=self._own, metadata=self._metadata, data=data)


# Files.


class HashedFiles(FileSystemBase):
    """DCP's file system for one folder of a storage. `facts` describes the files written through it."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self.facts: dict[str, FileFacts] = {}
        self._storage = storage
        self._folder = folder

    def save(self, name: str, data: bytes) -> None:
        """Write one small file, with an fsync if the storage is a disk."""
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
        """Do nothing, because a rank's first file creates its folder."""

    def exists(self, path: str | os.PathLike[str]) -> bool:
        """Return whether this writer wrote the file. No other writer uses its folder."""
        return os.fspath(path) in self.facts

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        self._storage.remove(f"{self._folder}/{os.fspath(path)}")

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003
        return True


class HashingStream(io.RawIOBase):
    """Stream that passes data on and computes its size and hash. It is written only sequentially."""

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


class _FilesInMemory(HashedFiles):
    """In-memory files, for which DCP uses a temporary name first. The storage then sees only the final name.

    An object store may cache for a while that a requested object did not exist.
    """

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:  # noqa: ARG002
        stream = io.BytesIO()
        yield stream
        self.contents[os.fspath(path)] = stream.getvalue()

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        self.contents[os.fspath(new_path)] = self.contents.pop(os.fspath(path))

    def exists(self, path: str | os.PathLike[str]) -> bool:
        return os.fspath(path) in self.contents


class _ReadyData(DefaultSavePlanner):
    """Planner that has finished planning and only returns the data."""

    def __init__(self, data: Mapping[MetadataIndex, torch.Tensor | bytes]) -> None:
        super().__init__()
        self._data = data

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        data = self._data[write_item.index]
        return io.BytesIO(data) if isinstance(data, bytes) else data


# Writing.


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Share that one rank writes, and its location. The data of the plan's items are passed separately."""

    root: str
    folder: str
    rank: int
    plan: SavePlan
    rng: bytes
    num_bytes: int


@record
@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenShare:
    """Record of a rank's written files, stored in the folder until the commit."""

    files: Mapping[str, FileFacts]
    results: list[WriteResult]
    error: str = ""


def write_share(share: Share, data: Mapping[MetadataIndex, torch.Tensor | bytes]) -> None:
    """Write one rank's share, and a record of it or of the failure."""
    storage = open_storage(share.root)
    try:
        written = _write_files(storage, share, data)
        storage.write(_record_name(share.folder, share.rank), encode(written, name="share"))
    except Exception as error:
        reason = _find_reason(error)
        with contextlib.suppress(OSError):  # also makes room for the record
            storage.remove(f"{share.folder}/{_name(share.rank)}")
        record_failure(share.root, share.folder, share.rank, reason)
        raise EngineError(reason) from error


def _find_reason(error: BaseException) -> str:
    """Return the operating system's error, because torch's own only reports that a file is too short."""
    link: BaseException | None = error
    while link is not None and not isinstance(link, OSError):
        link = link.__cause__ or link.__context__
    error = link or error
    return f"{type(error).__name__}: {error}"


def record_failure(root: str, folder: str, rank: int, error: str) -> None:
    """Write a record for rank 0 that this rank could not write its share."""
    storage, name = open_storage(root), _record_name(folder, rank)
    try:
        storage.write(name, encode(_make_failed(error), name="share"))
    except OSError:
        with contextlib.suppress(OSError):
            storage.write(name, b"")  # fits even on a full disk


def _make_failed(error: str) -> WrittenShare:
    return WrittenShare(files={}, results=[], error=error)


def read_share(storage: Storage, folder: str, rank: int) -> WrittenShare | None:
    """Return a rank's record, or None if it has not written one yet."""
    name = _record_name(folder, rank)
    size = storage.size(name)
    if size is None:
        return None
    if size == 0:  # in an object store, it may still be in flight
        return (
            _make_failed("the disk was too full to record the reason")
            if storage.can_rename
            else None
        )
    share = decode(storage.read(name), name=name)
    return share if isinstance(share, WrittenShare) else None


def remove_record(storage: Storage, folder: str, rank: int) -> None:
    storage.remove(_record_name(folder, rank))


def _name(rank: int) -> str:
    return f"rank-{rank}"


def _record_name(folder: str, rank: int) -> str:
    return f"{folder}/.share-{rank}"


def _write_files(
    storage: Storage, share: Share, data: Mapping[MetadataIndex, torch.Tensor | bytes]
) -> WrittenShare:
    files = HashedFiles(storage, share.folder)
    writer = FileSystemWriter(
        share.root,
        sync_files=storage.can_rename,  # an object store has no fsync
        thread_count=_THREADS if share.num_bytes >= _MANY_BYTES else 1,
        per_thread_copy_ahead=0,
    )
    writer.fs, writer.path = files, ""
    folder = _name(share.rank)
    plan = SavePlan(share.plan.items, storage_data=_StoragePrefix(f"{folder}/"))
    results = writer.write_data(plan, _ReadyData(data)).wait()
    files.save(f"{folder}/{RNG}", share.rng)
    return WrittenShare(files=files.facts, results=results)


def write_metadata(
    storage: Storage, folder: str, metadata: Metadata, shares: Iterable[WrittenShare]
) -> FileFacts:
    """Write DCP's own metadata file, so that DCP's tools can read the folder."""
    made = _FilesInMemory()
    writer = FileSystemWriter(storage.root, sync_files=False)
    writer.fs, writer.path = made, ""
    writer.finish(metadata, [share.results for share in shares])
    files = HashedFiles(storage, folder)
    files.save(METADATA, made.contents[METADATA])
    return files.facts[METADATA]


# Reading.


class _SafePlanner(DefaultLoadPlanner):
    """Planner that reads entries other than tensors as bytes, which torch's own planner would unpickle."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        loaded = torch.load(value, map_location="cpu", weights_only=True)
        if not isinstance(loaded, bytes):
            raise ValueError(f"{read_item.dest_index.fqn} is not an entry of a checkpoint")  # noqa: TRY004
        self.state_dict[read_item.dest_index.fqn] = loaded


class ShareReader:
    """Reader of tensors and other entries anywhere in a checkpoint. It runs no code from it."""

    def __init__(self, storage: Storage, folder: str, manifest: CheckpointManifest) -> None:
        self._reader = FileSystemReader(storage.root)
        self._reader.fs, self._reader.path = HashedFiles(storage, folder), ""
        data = storage.read(f"{folder}/{METADATA}")
        if hashlib.sha256(data).hexdigest() != manifest.files[METADATA].sha256:
            raise ValueError(f"{METADATA} has changed since it was checked")
        self._metadata = load_metadata(data, manifest.files)
        self._reader.set_up_storage_reader(self._metadata, is_coordinator=True)

    @property
    def contents(self) -> dict[str, SavedTensor | None]:
        """The tensors in the checkpoint, and None for its other entries."""
        return {
            name: SavedTensor(shape=tuple(entry.size), dtype=entry.properties.dtype)
            if isinstance(entry, TensorStorageMetadata)
            else None
            for name, entry in self._metadata.state_dict_metadata.items()
        }

    def read_others(self, names: Iterable[str], *, allow_pickle: bool) -> dict[str, Any]:
        """Return the entries that are not tensors. Raise NeedsTrustError for a pickled one."""
        others = {}
        for name, data in self.read(dict.fromkeys(names)).items():
            read = load_entry if data.startswith(_PICKLE) else decode
            others[name] = read(data, name=name, allow_pickle=allow_pickle)
        return others

    def read(self, targets: Mapping[str, Any]) -> dict[str, Any]:
        """Read tensors in place, and return the table with the entries that are not tensors."""
        planner = _SafePlanner(flatten_state_dict=False)
        planner.set_up_planner(dict(targets), self._metadata, is_coordinator=True)
        self._reader.read_data(planner.create_local_plan(), planner).wait()
        return dict(planner.state_dict)
