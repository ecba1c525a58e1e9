"""A rank's share of a checkpoint, written and read with torch's distributed checkpoint (DCP).

`write_share` puts what the plan gives to this rank under `rank-R/` and tells in a file what it wrote, so
that rank 0 can commit. It runs in the trainer or in its writer process alike, and needs no other rank.
`ShareReader` reads what this rank needs of all shares, however many ranks wrote them. Called by
checkpoints.py and the writer.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemBase, _StorageInfo, _StoragePrefix
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem, SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from windlass.errors import EngineError
from windlass.train.checkpoint.checkpoint_files import CheckpointManifest, FileFacts, HashedFiles
from windlass.train.checkpoint.checkpoint_storage import Storage, open_storage
from windlass.train.checkpoint.safe_unpickle import load_entry, load_metadata
from windlass.train.checkpoint.state_json import decode, encode, record
from windlass.train.checkpoint.training_state import SavedTensor

METADATA = ".metadata"  # DCP's own: which tensor lies where
RNG = "rng.pt"
_PICKLE = b"\x80"  # first byte of an entry that an earlier version has pickled
_MANY_BYTES = (
    256 << 20
)  # from here on a share is several files, written and hashed by as many threads
_THREADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one rank writes, and where; the data of the plan's items are given apart."""

    root: str
    folder: str
    rank: int
    plan: SavePlan
    rng: bytes
    num_bytes: int


for _kind in (FileFacts, MetadataIndex, WriteResult, _StorageInfo):
    record(_kind)


@record
@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenShare:
    """What a rank says of what it has written; lies in the folder until the commit."""

    files: Mapping[str, FileFacts]
    results: list[WriteResult]
    error: str = ""


def write_share(share: Share, data: Mapping[MetadataIndex, torch.Tensor | bytes]) -> None:
    """Write one rank's share; a file tells that it is there, or why it could not be written."""
    storage = open_storage(share.root)
    try:
        written = _write_files(storage, share, data)
        storage.write(_told_in(share.folder, share.rank), encode(written, name="share"))
    except Exception as error:
        reason = _find_reason(error)
        with contextlib.suppress(OSError):  # and makes room to say so
            storage.remove(f"{share.folder}/{_name(share.rank)}")
        tell_failure(share.root, share.folder, share.rank, reason)
        raise EngineError(reason) from error


def _find_reason(error: BaseException) -> str:
    """What the system said, where torch's own error is only that a file is not as long as it should be."""
    link: BaseException | None = error
    while link is not None and not isinstance(link, OSError):
        link = link.__cause__ or link.__context__
    error = link or error
    return f"{type(error).__name__}: {error}"


def tell_failure(root: str, folder: str, rank: int, error: str) -> None:
    """Let rank 0 know that this rank's share will not come."""
    storage, name = open_storage(root), _told_in(folder, rank)
    try:
        storage.write(name, encode(_make_failed(error), name="share"))
    except OSError:
        with contextlib.suppress(OSError):
            storage.write(name, b"")  # for which there is room on a full disk


def _make_failed(error: str) -> WrittenShare:
    return WrittenShare(files={}, results=[], error=error)


def read_share(storage: Storage, folder: str, rank: int) -> WrittenShare | None:
    """What a rank has told; None: nothing yet."""
    name = _told_in(folder, rank)
    size = storage.size(name)
    if size is None:
        return None
    if size == 0:  # elsewhere than in a folder, it may be on its way
        return _make_failed("there was no room even to say why") if storage.can_rename else None
    share = decode(storage.read(name), name=name)
    return share if isinstance(share, WrittenShare) else None


def remove_told(storage: Storage, folder: str, rank: int) -> None:
    """Forget what a rank has told."""
    storage.remove(_told_in(folder, rank))


def _name(rank: int) -> str:
    return f"rank-{rank}"


def _told_in(folder: str, rank: int) -> str:
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
    """Write DCP's own file, which makes the folder one that DCP's tools can read."""
    made = _FilesInMemory()
    writer = FileSystemWriter(storage.root, sync_files=False)
    writer.fs, writer.path = made, ""
    writer.finish(metadata, [share.results for share in shares])
    files = HashedFiles(storage, folder)
    files.save(METADATA, made.contents[METADATA])
    return files.facts[METADATA]


class _FilesInMemory(FileSystemBase):
    """Files that DCP writes under another name first, so that a storage sees each name once.

    An object store may remember for a while that it was asked for an object that was not there.
    """

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:  # noqa: ARG002
        stream = io.BytesIO()
        yield stream
        self.contents[os.fspath(path)] = stream.getvalue()

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        return f"{os.fspath(path)}/{suffix}".lstrip("/")

    def init_path(self, path: str | os.PathLike[str]) -> str | os.PathLike[str]:
        return path

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        self.contents[os.fspath(new_path)] = self.contents.pop(os.fspath(path))

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Do nothing: there are no folders."""

    def exists(self, path: str | os.PathLike[str]) -> bool:
        return os.fspath(path) in self.contents

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        self.contents.pop(os.fspath(path), None)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003
        return True


class _ReadyData(SavePlanner):
    """A planner whose planning is over: it only hands out the data."""

    def __init__(self, data: Mapping[MetadataIndex, torch.Tensor | bytes]) -> None:
        self._data = data

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        data = self._data[write_item.index]
        return io.BytesIO(data) if isinstance(data, bytes) else data

    def set_up_planner(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    def create_local_plan(self) -> SavePlan:
        raise NotImplementedError

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        raise NotImplementedError

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        raise NotImplementedError


class _SafePlanner(DefaultLoadPlanner):
    """Reads entries that are not tensors as bytes; torch's own planner would unpickle them."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        loaded = torch.load(value, map_location="cpu", weights_only=True)
        if not isinstance(loaded, bytes):
            raise ValueError(f"{read_item.dest_index.fqn} is no entry of a checkpoint")  # noqa: TRY004
        self.state_dict[read_item.dest_index.fqn] = loaded


class ShareReader:
    """Reads tensors and other entries out of a checkpoint, wherever they lie in it. Runs nothing of it."""

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
        """What is in the checkpoint: tensors, and None for other entries."""
        return {
            name: SavedTensor(shape=tuple(entry.size), dtype=entry.properties.dtype)
            if isinstance(entry, TensorStorageMetadata)
            else None
            for name, entry in self._metadata.state_dict_metadata.items()
        }

    def read_others(self, names: Iterable[str], *, allow_pickle: bool) -> dict[str, Any]:
        """Return the entries that are not tensors. Raises NeedsTrustError if one needs a real unpickler."""
        others = {}
        for name, data in self.read(dict.fromkeys(names)).items():
            read = load_entry if data.startswith(_PICKLE) else decode
            others[name] = read(data, name=name, allow_pickle=allow_pickle)
        return others

    def read(self, targets: Mapping[str, Any]) -> dict[str, Any]:
        """Read into tensors, in place; entries that are no tensors are returned in the table."""
        planner = _SafePlanner(flatten_state_dict=False)
        planner.set_up_planner(dict(targets), self._metadata, is_coordinator=True)
        self._reader.read_data(planner.create_local_plan(), planner).wait()
        return dict(planner.state_dict)
