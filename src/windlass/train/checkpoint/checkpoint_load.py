"""Which checkpoint is loaded, and that it is what was saved.

Newest first: each is checked (its manifest, its files' sizes and hashes, whether it fits the state) before
anything is changed; what is wrong with one is told and the one before it is taken. All ranks decide alike:
they share the work of hashing and exchange what they found. Called by checkpoints.py only.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from windlass.errors import SpecError
from windlass.train.checkpoint.checkpoint_files import (
    MANIFEST,
    UNFINISHED,
    CheckpointManifest,
    find_hash_faults,
    find_size_faults,
    parse_manifest,
    read_manifests,
    read_replaced,
)
from windlass.train.checkpoint.checkpoint_storage import Storage, find_foreign
from windlass.train.checkpoint.rank_shares import RNG, ShareReader
from windlass.train.checkpoint.state_json import TRUST_HINT, NeedsTrustError
from windlass.train.checkpoint.training_state import (
    derive_rng,
    find_faults,
    list_others,
    make_targets,
    restore_rng,
    restore_state,
)
from windlass.train.parallel.context import Context

logger = logging.getLogger(__name__)

_FAULTS_TOLD = 3
_LOOKS = 5

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
    trust: bool = False,
) -> LoadedCheckpoint | None:
    """Load the newest checkpoint that is whole and fits, or the one of `step` and no other.

    Nothing is written or removed. A training that saves meanwhile may remove what is being read, so the
    folder is looked at again if none could be used and it has changed.
    """
    for _ in range(_LOOKS):
        listed = _list(storage, context, step)
        if step is not None and not listed:
            raise SpecError(f"there is no step-{step} in {storage.root}", hint=_list_steps(storage))
        _refuse_foreign(storage, context, listed, trust=trust)
        loaded, refused = _load_first(storage, context, state, listed, check, trust=trust)
        if loaded is not None or not refused:
            return loaded
        if _list(storage, context, step) == listed:
            break
        logger.warning("%s has changed while it was read: looking again", storage.root)
    raise SpecError(
        f"no checkpoint in {storage.root} can be used: {' | '.join(refused)}",
        hint=FROM_SCRATCH,
    )


def _list(storage: Storage, context: Context, step: int | None) -> list[_Listed]:
    """Return what rank 0 sees, the newest first."""
    seen: list[tuple[str, str]] = []
    if context.is_main:
        for folder, manifest in (*read_manifests(storage), *read_replaced(storage)):
            value = asdict(manifest) if isinstance(manifest, CheckpointManifest) else manifest
            seen.append((folder, json.dumps(value)))
    listed = [_Listed.read(folder, text) for folder, text in context.broadcast(seen)]
    if step is not None:
        listed = [one for one in listed if one.step == step]
    return sorted(listed, key=_Listed.sort_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    """A folder with a checkpoint's name, and its manifest or what is wrong with it."""

    folder: str
    step: int
    manifest: CheckpointManifest | None
    fault: str

    @classmethod
    def read(cls, folder: str, text: str) -> _Listed:
        step = int(folder.partition(".")[0].removeprefix("step-"))
        value = json.loads(text)
        if isinstance(value, str):
            return cls(folder=folder, step=step, manifest=None, fault=value)
        return cls(folder=folder, step=step, manifest=parse_manifest(value, folder), fault="")

    def sort_key(self) -> tuple[int, int]:
        """Sort the newest first; what has no manifest comes where its step would."""
        return (-(10**9), -self.step) if self.manifest is None else (-self.manifest.number, 0)


def _refuse_foreign(
    storage: Storage, context: Context, listed: list[_Listed], *, trust: bool
) -> None:
    """Refuse a run, or a checkpoint in it, that another user owns; on every rank."""
    foreign = ""
    if context.is_main and not trust:
        names = [""]
        for one in listed:
            names += [one.folder, f"{one.folder}/{MANIFEST}"]
            names += [
                f"{one.folder}/{name}" for name in (one.manifest.files if one.manifest else ())
            ]
        foreign = find_foreign(storage, names)
    if foreign := context.broadcast(foreign):
        raise SpecError(f"{foreign}: it is not loaded", hint=TRUST_HINT)


def _load_first(
    storage: Storage,
    context: Context,
    state: Mapping[str, Any],
    listed: list[_Listed],
    check: Check | None,
    *,
    trust: bool,
) -> tuple[LoadedCheckpoint | None, list[str]]:
    """Load the first of these that can be; and why those before it cannot."""
    refused: list[str] = []
    damaged: set[int] = set()
    for one in listed:
        reader, faults = _check(storage, context, state, one, check)
        if reader is not None and one.manifest is not None and not faults:
            faults = _load(storage, context, state, reader, one, one.manifest, trust=trust)
            if not faults:
                return _describe(storage, context, one, one.manifest, frozenset(damaged)), refused
        if reader is None and one.manifest is not None:
            damaged.add(one.step)
        why = "; ".join(faults[:_FAULTS_TOLD]) + (" ..." if len(faults) > _FAULTS_TOLD else "")
        # where nothing can be renamed, a save that was broken off has a checkpoint's name
        if storage.can_rename or one.fault != UNFINISHED:
            refused.append(f"{one.folder}: {why}")
        if context.is_main:
            logger.warning("checkpoint %s/%s cannot be used: %s", storage.root, one.folder, why)
    return None, refused


def _list_steps(storage: Storage) -> str:
    folders = [folder for folder, _ in read_manifests(storage)]
    return f"there are {', '.join(folders)}" if folders else "it has no checkpoint at all"


def _check(
    storage: Storage,
    context: Context,
    state: Mapping[str, Any],
    one: _Listed,
    check: Check | None,
) -> tuple[ShareReader | None, list[str]]:
    """Return what is wrong with a checkpoint, as all ranks see it; and what reads it, if nothing is."""
    manifest = one.manifest
    if manifest is None:
        return None, [one.fault]
    faults = find_size_faults(storage, one.folder, manifest) if context.is_main else []
    faults = context.broadcast(faults)
    if not faults:
        files = sorted(manifest.files, key=lambda name: manifest.files[name].size)
        own = files[context.rank :: context.world_size]
        faults = _merge(context.gather(find_hash_faults(storage, one.folder, manifest, own)))
    if faults:
        return None, faults
    if check is not None:
        check(manifest.facts, manifest.step)
    reader, faults = None, []
    try:
        reader = ShareReader(storage, one.folder, manifest)
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
    one: _Listed,
    manifest: CheckpointManifest,
    *,
    trust: bool,
) -> list[str]:
    """Read everything into the state, once every rank has read it; return why that failed, if it did."""
    rng = b""
    others: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    refusal, fault = "", ""
    try:
        others = reader.read_others(list_others(state), allow_pickle=trust)
    except NeedsTrustError as error:
        refusal = error.message
    except Exception as error:  # noqa: BLE001 - every rank must hear of it
        fault = f"it cannot be read: {type(error).__name__}: {error}"
    told = context.gather((refusal, fault))
    if refusals := [one for one, _ in told if one]:
        raise SpecError(f"{storage.root}/{one.folder}: {refusals[0]}", hint=TRUST_HINT)
    if faults := _merge([[fault] for _, fault in told if fault]):
        return faults
    targets = make_targets(state, others, reader.contents)
    try:
        tensors = reader.read(targets)
        if manifest.world_size == context.world_size:
            rng = storage.read(f"{one.folder}/rank-{context.rank}/{RNG}")
    except Exception as error:  # noqa: BLE001 - every rank must hear of it
        fault = f"it cannot be read: {type(error).__name__}: {error}"
    if faults := _merge([[fault] for fault in context.gather(fault) if fault]):
        return faults
    restore_state(state, others, tensors)
    _restore_generators(context, manifest, rng)
    return []


def _restore_generators(context: Context, manifest: CheckpointManifest, rng: bytes) -> None:
    """Restore the random generators, or derive them from the seed if the world size has changed."""
    if rng:
        restore_rng(rng)
        return
    seed = int(manifest.facts.get("seed") or 0)
    derive_rng(seed=seed, step=manifest.step, rank=context.rank, world_size=context.world_size)


def _describe(
    storage: Storage,
    context: Context,
    one: _Listed,
    manifest: CheckpointManifest,
    damaged: frozenset[int],
) -> LoadedCheckpoint:
    return LoadedCheckpoint(
        step=manifest.step,
        epoch=manifest.epoch,
        facts=manifest.facts,
        folder=f"{storage.root}/{one.folder}",
        world_size=manifest.world_size,
        is_rng_restored=manifest.world_size == context.world_size,
        damaged=damaged,
    )
