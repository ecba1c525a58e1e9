"""Which checkpoint is loaded, and that it is what was saved.

Newest first: each is checked (its manifest, its files' sizes and hashes, whether it fits the state) before
anything is changed; what is wrong with one is told and the one before it is taken. All ranks decide alike:
they share the work of hashing and exchange what they found. Called by checkpoints.py only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from windlass.errors import SpecError
from windlass.train.checkpoint_manifest import (
    UNFINISHED,
    CheckpointManifest,
    find_hash_faults,
    find_size_faults,
    read_manifests,
)
from windlass.train.checkpoint_rng import derive_rng, restore_rng
from windlass.train.checkpoint_shards import RNG, ShareReader
from windlass.train.checkpoint_state import find_faults, list_others, make_targets, restore_state
from windlass.train.checkpoint_storage import Storage
from windlass.train.context import Context

logger = logging.getLogger(__name__)

_FAULTS_TOLD = 3

FROM_SCRATCH = "to train from scratch, give the run another name, or resume=False (--no-resume)"

# of a whole checkpoint's facts and step; may refuse
Check = Callable[[Mapping[str, Any], int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCheckpoint:
    """What was loaded, besides what is in the state's objects now."""

    step: int
    epoch: int | None
    facts: Mapping[str, Any]
    folder: str
    world_size: int  # that saved it
    is_rng_restored: (
        bool  # False: at another world size, generators start anew from seed, step and rank
    )
    damaged: frozenset[int]  # steps of newer checkpoints that cannot be read


def load_checkpoint(
    storage: Storage,
    context: Context,
    state: Mapping[str, Any],
    *,
    step: int | None,
    check: Check | None = None,
) -> LoadedCheckpoint | None:
    """Load the newest checkpoint that is whole and fits, or the one of `step` and no other."""
    listed = context.broadcast(list(read_manifests(storage)) if context.is_main else None)
    if step is not None:
        listed = [(folder, manifest) for folder, manifest in listed if folder == f"step-{step}"]
        if not listed:
            raise SpecError(f"there is no step-{step} in {storage.root}", hint=_list_steps(storage))
    refused: list[str] = []
    damaged: set[int] = set()
    for folder, manifest in sorted(listed, key=_age):
        reader, faults = _check(storage, context, state, manifest, check)
        if reader is not None and isinstance(manifest, CheckpointManifest) and not faults:
            return _load(storage, context, state, reader, manifest, frozenset(damaged))
        if reader is None and isinstance(manifest, CheckpointManifest):
            damaged.add(manifest.step)
        why = "; ".join(faults[:_FAULTS_TOLD]) + (" ..." if len(faults) > _FAULTS_TOLD else "")
        # where nothing can be renamed, a save that was broken off has a checkpoint's name
        if storage.can_rename or manifest != UNFINISHED:
            refused.append(f"{folder}: {why}")
        if context.is_main:
            logger.warning("checkpoint %s/%s cannot be used: %s", storage.root, folder, why)
    if not refused:
        return None
    raise SpecError(
        f"no checkpoint in {storage.root} can be used: {' | '.join(refused)}",
        hint=FROM_SCRATCH,
    )


def _age(listed: tuple[str, CheckpointManifest | str]) -> tuple[int, int]:
    """Sorts the newest first; what has no manifest comes where its step would."""
    folder, manifest = listed
    step = int(folder.removeprefix("step-"))
    return (-manifest.number, 0) if isinstance(manifest, CheckpointManifest) else (-(10**9), -step)


def _list_steps(storage: Storage) -> str:
    folders = [folder for folder, _ in read_manifests(storage)]
    return f"there are {', '.join(folders)}" if folders else "it has no checkpoint at all"


def _check(
    storage: Storage,
    context: Context,
    state: Mapping[str, Any],
    manifest: CheckpointManifest | str,
    check: Check | None,
) -> tuple[ShareReader | None, list[str]]:
    """What is wrong with a checkpoint, as all ranks see it; and what reads it, if nothing is."""
    if isinstance(manifest, str):
        return None, [manifest]
    faults = context.broadcast(find_size_faults(storage, manifest) if context.is_main else None)
    if not faults:
        files = sorted(manifest.files, key=lambda name: manifest.files[name].size)
        own = files[context.rank :: context.world_size]
        faults = _merge(context.gather(find_hash_faults(storage, manifest, own)))
    if faults:
        return None, faults
    if check is not None:
        check(manifest.facts, manifest.step)
    reader, faults = None, []
    try:
        reader = ShareReader(storage, manifest.folder)
        faults = find_faults(state, reader.contents)
    except Exception as error:  # noqa: BLE001 - whatever DCP says of files that another version wrote
        faults = [f"it cannot be read: {type(error).__name__}: {error}"]
    return reader, _merge(context.gather(faults))


def _merge(lists: list[list[str]]) -> list[str]:
    return list(dict.fromkeys(fault for faults in lists for fault in faults))


def _load(
    storage: Storage,
    context: Context,
    state: Mapping[str, Any],
    reader: ShareReader,
    manifest: CheckpointManifest,
    damaged: frozenset[int],
) -> LoadedCheckpoint:
    others = reader.read(dict.fromkeys(list_others(state)))
    tensors = reader.read(make_targets(state, others, reader.contents))
    restore_state(state, others, tensors)
    is_rng_restored = manifest.world_size == context.world_size
    if is_rng_restored:
        restore_rng(storage.read(f"{manifest.folder}/rank-{context.rank}/{RNG}"))
    else:
        seed = int(manifest.facts.get("seed") or 0)
        derive_rng(seed=seed, step=manifest.step, rank=context.rank, world_size=context.world_size)
    return LoadedCheckpoint(
        step=manifest.step,
        epoch=manifest.epoch,
        facts=manifest.facts,
        folder=f"{storage.root}/{manifest.folder}",
        world_size=manifest.world_size,
        is_rng_restored=is_rng_restored,
        damaged=damaged,
    )
