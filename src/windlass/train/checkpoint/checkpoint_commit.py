"""How the shares of all ranks become one checkpoint, and which checkpoints stay.

Rank 0's part of a save: wait for every share, write DCP's metadata and the manifest, give the folder its
name, move `latest`, `best` and `epoch-E`, and remove what retention no longer keeps. Runs where rank 0
writes: in its writer process, or in the trainer. Ranks meet in the folder only: no collective runs beside
the training's.
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
_SLOW_S = 10.0  # until a file that another node has written is seen with its whole size
_EPOCH = re.compile(r"epoch-\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What rank 0 must know to make shares a checkpoint."""

    root: str
    folder: str  # where the shares are
    manifest: CheckpointManifest  # its files and its number are filled in
    metadata: Metadata
    keep: int
    damaged: frozenset[int]  # steps whose checkpoints are none of those to keep
    leftovers: frozenset[str]  # folders of failed saves, where folders cannot be renamed
    token: str  # of the training that owns the run
    timeout_s: float  # how long to wait for the other ranks' shares


@dataclass(frozen=True, slots=True, kw_only=True)
class BestStep:
    """The step that was best so far, and the value that says so."""

    step: int
    value: float


def commit(order: Commit) -> CheckpointManifest:
    """Make one checkpoint of the shares of all ranks. Raises EngineError if that cannot be."""
    storage = open_storage(order.root)
    try:
        shares = _wait_for_shares(storage, order)
        check_owner(storage, order.token)
        manifest = _make_manifest(storage, order, shares)
        write_manifest(storage, order.folder, manifest)
        if storage.can_rename:
            check_owner(storage, order.token)
            _take_place(storage, order.folder, manifest.folder)
    except (EngineError, OSError):
        if storage.can_rename:  # its name is this save's alone
            storage.remove(order.folder)
        raise
    _tidy(storage, order, manifest)
    return manifest


def _make_manifest(
    storage: Storage, order: Commit, shares: list[WrittenShare]
) -> CheckpointManifest:
    """Make the manifest, after a look at every file that it lists."""
    others = find_whole(storage, but=order.folder)
    files = {METADATA: write_metadata(storage, order.folder, order.metadata, shares)}
    for rank, share in enumerate(shares):
        files |= share.files
        remove_record(storage, order.folder, rank)
    number = 1 + max((one.number for one in others), default=0)
    manifest = replace(order.manifest, files=files, number=max(number, order.manifest.number))
    faults: list[str] = []

    def is_complete() -> bool:
        _refuse_vanished(storage, order)
        faults[:] = find_size_faults(storage, order.folder, manifest)
        return not faults

    if not wait_until(is_complete, timeout_s=_SLOW_S):
        raise EngineError(
            f"{order.manifest.folder}: {'; '.join(faults[:3])}, although it was written",
            hint=f"does anything else remove or change files in {order.root}?",
        )
    return manifest


def _refuse_vanished(storage: Storage, order: Commit) -> None:
    if not storage.has_folder(order.folder):
        raise EngineError(
            f"{order.manifest.folder}: {order.folder} has vanished while it was written",
            hint=f"does anything else remove files in {order.root}?",
        )


def _tidy(storage: Storage, order: Commit, manifest: CheckpointManifest) -> None:
    """Move the links and remove what is not kept. The checkpoint is whole: no failure here fails it."""
    try:
        _point(storage, manifest)
    except OSError as error:
        logger.warning("%s is saved, but links to it are not: %s", manifest.folder, error)
    try:
        check_owner(storage, order.token)
        if storage.can_rename and read_manifest(storage, manifest.folder).number != manifest.number:
            raise ValueError("it is not what was written")
        remove_half_written(storage)
        remove_unfinished(storage, order.leftovers - {manifest.folder})
        remove_old(storage, keep=order.keep, damaged=order.damaged, newest=manifest)
    except (EngineError, OSError, ValueError) as error:
        logger.warning("%s is saved, but older ones are not removed: %s", manifest.folder, error)


def _wait_for_shares(storage: Storage, order: Commit) -> list[WrittenShare]:
    shares: dict[int, WrittenShare] = {}
    ranks = range(order.manifest.world_size)

    def list_missing() -> str:
        return ", ".join(str(rank) for rank in ranks if rank not in shares)

    def is_settled() -> bool:
        for rank in ranks:
            if (
                rank not in shares
                and (share := read_share(storage, order.folder, rank)) is not None
            ):
                shares[rank] = share
        is_over = len(shares) == len(ranks) or any(share.error for share in shares.values())
        if not is_over:
            _refuse_vanished(storage, order)
        return is_over

    def say(waited_s: float) -> None:
        logger.warning(
            "%s: waiting for the share of rank %s, %.0f of %.0f s",
            *(order.manifest.folder, list_missing(), waited_s, order.timeout_s),
        )

    is_in_time = wait_until(is_settled, timeout_s=order.timeout_s, say=say)
    for rank, share in sorted(shares.items()):
        if share.error:
            raise EngineError(
                f"rank {rank} could not write its share of {order.manifest.folder}: {share.error}"
            )
    if not is_in_time:
        raise EngineError(
            f"{order.manifest.folder}: no share came from rank {list_missing()} in "
            f"{order.timeout_s:.0f} s",
            hint=f"all ranks must see the same folder; is {order.root} shared by all nodes?",
        )
    return [shares[rank] for rank in ranks]


def _take_place(storage: Storage, folder: str, name: str) -> None:
    """Give a folder its final name; one that was saved there before goes first."""
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


def _point(storage: Storage, manifest: CheckpointManifest) -> None:
    if manifest.epoch is not None:
        storage.point(f"epoch-{manifest.epoch}", manifest.folder)
    if any(best.step == manifest.step for best in read_best(storage)[:1]):
        storage.point(BEST, manifest.folder)
    storage.point(LATEST, manifest.folder)


def remove_old(
    storage: Storage, *, keep: int, damaged: frozenset[int], newest: CheckpointManifest
) -> None:
    """Remove all but the `keep` newest checkpoints and the best one, and the links to them.

    Damaged ones stay until there are as many others. The newest is given: an object store may not show it
    yet.
    """
    whole = [newest, *find_whole(storage, but=newest.folder)]
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
    """Under another name first: what a kill leaves of it is removed later, and looks like no checkpoint."""
    if not storage.can_rename:
        storage.remove(f"{manifest.folder}/{MANIFEST}")  # which makes it one
        storage.remove(manifest.folder)
        return
    gone = f"{manifest.folder}.gone-{manifest.number}"
    storage.move(manifest.folder, gone)
    storage.remove(gone)


def remove_half_written(storage: Storage, *, but: str = "") -> list[str]:
    """Remove temporary folders of saves that did not come to their end; return their names.

    A checkpoint that was to make place for another of its step, which did not come, is put back. Only the
    owner of the run may call this. but: the folder of a save under way.
    """
    if not storage.can_rename:
        return []
    removed, steps = [], set(storage.names())
    for name in sorted(steps):
        match = HALF_WRITTEN.fullmatch(name)
        if match is None or name == but:
            continue
        if match[2] == "old" and match[1] not in steps:
            storage.move(name, match[1])
            steps.add(match[1])
        else:
            storage.remove(name)
            removed.append(name)
    return removed


def find_unfinished(storage: Storage) -> frozenset[str]:
    """Return folders without a manifest, where nothing can be renamed: saves that were broken off.

    Ask when the run is taken: later, one may be a whole checkpoint that the store does not show yet.
    """
    if storage.can_rename:
        return frozenset()
    return frozenset(folder for folder, state in read_manifests(storage) if state == UNFINISHED)


def remove_unfinished(storage: Storage, folders: Collection[str]) -> None:
    """Remove those of these folders that still have no manifest. Only the owner of the run may call this."""
    for folder, state in read_manifests(storage) if folders else ():
        if folder in folders and state == UNFINISHED:
            storage.remove(folder)


# The best step. Two are remembered: a new one may be lost before its checkpoint is whole.


def read_best(storage: Storage) -> list[BestStep]:
    """The best step, and the one before it if the best one's checkpoint may not be there yet."""
    if storage.size(_BEST_FILE) is None:
        return []
    try:
        return [BestStep(**best) for best in json.loads(storage.read(_BEST_FILE))]
    except (OSError, TypeError, ValueError):
        return []


def write_best(storage: Storage, best: BestStep) -> None:
    """Remember a new best step; the link follows when its checkpoint is whole."""
    steps = _whole_steps(storage)
    before = [one for one in read_best(storage) if one.step in steps and one.step != best.step]
    kept = [] if best.step in steps else before[:1]
    storage.write(_BEST_FILE, json.dumps([asdict(one) for one in (best, *kept)]).encode())
    if best.step in _whole_steps(storage):  # maybe since a moment ago
        storage.point(BEST, f"step-{best.step}")


def find_best(storage: Storage) -> BestStep | None:
    """The best step whose checkpoint is there."""
    steps = _whole_steps(storage)
    return next((best for best in read_best(storage) if best.step in steps), None)


def _whole_steps(storage: Storage) -> set[int]:
    return {manifest.step for manifest in find_whole(storage)}
