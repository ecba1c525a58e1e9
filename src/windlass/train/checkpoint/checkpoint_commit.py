"""Commit of a checkpoint by rank 0, and removal of old checkpoints.

A commit has these steps:

- wait for the shares of all ranks
- write DCP's metadata and the manifest
- rename the folder to its final name
- move the links `latest`, `best` and `epoch-E`
- remove the checkpoints that retention no longer keeps

This code runs where rank 0 writes: in its writer process or in the trainer. Ranks communicate only through
files in the folder, so no collective runs concurrently with those of the training.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace

from torch.distributed.checkpoint.metadata import Metadata

from windlass.errors import EngineError
from windlass.train.checkpoint.checkpoint_manifest import (
    HALF_WRITTEN,
    MANIFEST,
    UNFINISHED,
    CheckpointManifest,
    find_size_faults,
    find_whole,
    read_manifest,
    read_manifests,
    write_manifest,
)
from windlass.train.checkpoint.checkpoint_storage import Storage, open_storage
from windlass.train.checkpoint.rank_shares import (
    METADATA,
    WrittenShare,
    read_share,
    remove_record,
    write_metadata,
)
from windlass.train.checkpoint.run_lock import check_owner
from windlass.waiting import wait_until

logger = logging.getLogger(__name__)

LATEST = "latest"
BEST = "best"
_BEST_FILE = "best.json"
_SLOW_S = 10.0  # maximum delay until another node's file is visible here in full size
_EPOCH = re.compile(r"epoch-\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Everything that rank 0 needs to turn the shares into a checkpoint."""

    root: str
    folder: str  # contains the shares
    manifest: CheckpointManifest  # `commit` fills in its files and number
    metadata: Metadata
    keep: int
    damaged: frozenset[int]  # steps whose checkpoints do not count toward `keep`
    leftovers: frozenset[str]  # folders of failed saves, where folders cannot be renamed
    token: str  # token of the process that owns the run
    timeout_s: float  # how long to wait for the other ranks' shares


@dataclass(frozen=True, slots=True, kw_only=True)
class BestStep:
    """The best step so far, and its value."""

    step: int
    value: float


def commit(request: Commit) -> CheckpointManifest:
    """Turn the shares of all ranks into one checkpoint. Raises EngineError if that fails."""
    storage = open_storage(request.root)
    try:
        shares = _wait_for_shares(storage, request)
        check_owner(storage, request.token)
        manifest = _make_manifest(storage, request, shares)
        write_manifest(storage, request.folder, manifest)
        if storage.can_rename:
            check_owner(storage, request.token)
            _move_into_place(storage, request.folder, manifest.folder)
    except (EngineError, OSError):
        if storage.can_rename:  # no other save uses a folder of this name
            storage.remove(request.folder)
        raise
    _tidy(storage, request, manifest)
    return manifest


def _make_manifest(
    storage: Storage, request: Commit, shares: list[WrittenShare]
) -> CheckpointManifest:
    """Make the manifest, and wait until every file that it lists has its full size."""
    others = find_whole(storage, exclude=request.folder)
    files = {METADATA: write_metadata(storage, request.folder, request.metadata, shares)}
    for rank, share in enumerate(shares):
        files |= share.files
        remove_record(storage, request.folder, rank)
    number = 1 + max((one.number for one in others), default=0)
    manifest = replace(request.manifest, files=files, number=max(number, request.manifest.number))
    faults: list[str] = []

    def is_complete() -> bool:
        _check_folder_exists(storage, request)
        faults[:] = find_size_faults(storage, request.folder, manifest)
        return not faults

    if not wait_until(is_complete, timeout_s=_SLOW_S):
        raise EngineError(
            f"{request.manifest.folder}: {'; '.join(faults[:3])}, although the write succeeded",
            hint=f"check whether another program removes or changes files in {request.root}",
        )
    return manifest


def _check_folder_exists(storage: Storage, request: Commit) -> None:
    if not storage.has_folder(request.folder):
        raise EngineError(
            f"{request.manifest.folder}: {request.folder} disappeared while it was written",
            hint=f"check whether another program removes files in {request.root}",
        )


def _tidy(storage: Storage, request: Commit, manifest: CheckpointManifest) -> None:
    """Move the links and remove old checkpoints. Only log failures, because the checkpoint is complete."""
    try:
        _update_links(storage, manifest)
    except OSError as error:
        logger.warning(
            "%s is saved, but the links to it could not be updated: %s", manifest.folder, error
        )
    try:
        check_owner(storage, request.token)
        if storage.can_rename and read_manifest(storage, manifest.folder).number != manifest.number:
            raise ValueError("its manifest is not the one that was written")
        remove_half_written(storage)
        remove_unfinished(storage, request.leftovers - {manifest.folder})
        remove_old(storage, keep=request.keep, damaged=request.damaged, newest=manifest)
    except (EngineError, OSError, ValueError) as error:
        logger.warning(
            "%s is saved, but older checkpoints could not be removed: %s", manifest.folder, error
        )


def _wait_for_shares(storage: Storage, request: Commit) -> list[WrittenShare]:
    shares: dict[int, WrittenShare] = {}
    ranks = range(request.manifest.world_size)

    def list_missing() -> str:
        return ", ".join(str(rank) for rank in ranks if rank not in shares)

    def is_settled() -> bool:
        for rank in ranks:
            if (
                rank not in shares
                and (share := read_share(storage, request.folder, rank)) is not None
            ):
                shares[rank] = share
        is_over = len(shares) == len(ranks) or any(share.error for share in shares.values())
        if not is_over:
            _check_folder_exists(storage, request)
        return is_over

    def log_wait(waited_s: float) -> None:
        logger.warning(
            "%s: waiting for the share of rank %s (%.0f of %.0f s)",
            *(request.manifest.folder, list_missing(), waited_s, request.timeout_s),
        )

    is_in_time = wait_until(is_settled, timeout_s=request.timeout_s, say=log_wait)
    for rank, share in sorted(shares.items()):
        if share.error:
            raise EngineError(
                f"rank {rank} could not write its share of {request.manifest.folder}: {share.error}"
            )
    if not is_in_time:
        raise EngineError(
            f"{request.manifest.folder}: no share from rank {list_missing()} after "
            f"{request.timeout_s:.0f} s",
            hint=f"all ranks must see the same folder; check that all nodes share {request.root}",
        )
    return [shares[rank] for rank in ranks]


def _move_into_place(storage: Storage, folder: str, name: str) -> None:
    """Rename a folder to its final name, and remove an earlier checkpoint of that name."""
    old = f"{name}.old-{folder.rpartition('-')[2]}"
    if name in storage.names():
        storage.move(name, old)
    try:
        storage.move(folder, name)
    except OSError:
        if old in storage.names():
            storage.move(old, name)
        raise
    storage.remove(old)


def _update_links(storage: Storage, manifest: CheckpointManifest) -> None:
    if manifest.epoch is not None:
        storage.point(f"epoch-{manifest.epoch}", manifest.folder)
    if any(best.step == manifest.step for best in read_best(storage)[:1]):
        storage.point(BEST, manifest.folder)
    storage.point(LATEST, manifest.folder)


def remove_old(
    storage: Storage, *, keep: int, damaged: frozenset[int], newest: CheckpointManifest
) -> None:
    """Remove all but the `keep` newest checkpoints and the best one, and the links to them.

    Damaged checkpoints are kept until there are `keep` intact ones. `newest` is a parameter because an object
    store may not list it yet.
    """
    whole = [newest, *find_whole(storage, exclude=newest.folder)]
    sound = [manifest.step for manifest in whole if manifest.step not in damaged]
    steps_to_keep = {*sound[:keep], *(damaged if len(sound) < keep else ())}
    steps_to_keep |= {best.step for best in read_best(storage)}
    for manifest in whole:
        if manifest.step not in steps_to_keep:
            _remove_step(storage, manifest)
    folders = {manifest.folder for manifest in whole if manifest.step in steps_to_keep}
    for name in storage.names():
        if _EPOCH.fullmatch(name) and storage.target(name) not in folders:
            storage.remove(name)


def _remove_step(storage: Storage, manifest: CheckpointManifest) -> None:
    """Remove a checkpoint.

    Renames its folder first, so that an interrupted removal leaves nothing that looks like a checkpoint.
    `remove_half_written` removes such folders later.
    """
    if not storage.can_rename:
        storage.remove(
            f"{manifest.folder}/{MANIFEST}"
        )  # without it, the folder is not a checkpoint
        storage.remove(manifest.folder)
        return
    gone = f"{manifest.folder}.gone-{manifest.number}"
    storage.move(manifest.folder, gone)
    storage.remove(gone)


def remove_half_written(storage: Storage, *, exclude: str = "") -> list[str]:
    """Remove the temporary folders of interrupted saves, and return their names.

    If a save was interrupted while it replaced a checkpoint of the same step, the old checkpoint is
    restored. Only the owner of the run may call this.

    exclude: the folder of a save in progress, which is kept.
    """
    if not storage.can_rename:
        return []
    removed, steps = [], set(storage.names())
    for name in sorted(steps):
        match = HALF_WRITTEN.fullmatch(name)
        if match is None or name == exclude:
            continue
        if match[2] == "old" and match[1] not in steps:
            storage.move(name, match[1])
            steps.add(match[1])
        else:
            storage.remove(name)
            removed.append(name)
    return removed


def find_unfinished(storage: Storage) -> frozenset[str]:
    """Return the folders without a manifest, which interrupted saves leave in a storage that cannot rename.

    Call this right after locking the run. Later, such a folder may be a complete checkpoint whose manifest
    the store does not show yet.
    """
    if storage.can_rename:
        return frozenset()
    return frozenset(folder for folder, state in read_manifests(storage) if state == UNFINISHED)


def remove_unfinished(storage: Storage, folders: Collection[str]) -> None:
    """Remove the given folders that still have no manifest. Only the owner of the run may call this."""
    for folder, state in read_manifests(storage) if folders else ():
        if folder in folders and state == UNFINISHED:
            storage.remove(folder)


# The best step. The file keeps two, because a new best step may be lost before its checkpoint is complete.


def read_best(storage: Storage) -> list[BestStep]:
    """Return the best step, and the previous one if the checkpoint of the best step may not exist yet."""
    if storage.size(_BEST_FILE) is None:
        return []
    try:
        return [BestStep(**best) for best in json.loads(storage.read(_BEST_FILE))]
    except (OSError, TypeError, ValueError):
        return []


def write_best(storage: Storage, best: BestStep) -> None:
    """Record a new best step. Its link is set once its checkpoint is complete."""
    steps = _whole_steps(storage)
    before = [one for one in read_best(storage) if one.step in steps and one.step != best.step]
    kept = [] if best.step in steps else before[:1]
    storage.write(_BEST_FILE, json.dumps([asdict(one) for one in (best, *kept)]).encode())
    if best.step in _whole_steps(storage):  # read again: the writer may have just completed it
        storage.point(BEST, f"step-{best.step}")


def find_best(storage: Storage) -> BestStep | None:
    """Return the best step that still has a complete checkpoint, or None."""
    steps = _whole_steps(storage)
    return next((best for best in read_best(storage) if best.step in steps), None)


def _whole_steps(storage: Storage) -> set[int]:
    return {manifest.step for manifest in find_whole(storage)}
