"""Loading of the newest checkpoint that is complete and fits the state.

Each candidate is checked before anything is changed: its manifest, the sizes and hashes of its files, and
whether it fits the state. If a check fails, this is logged and the next older checkpoint is tried. Ranks
divide the hashing among themselves and exchange the faults, so all of them choose the same checkpoint.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from windlass.errors import SpecError
from windlass.train.checkpoint.checkpoint_manifest import (
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
from windlass.train.checkpoint.state_encoding import TRUST_HINT, NeedsTrustError
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

_FAULTS_SHOWN = 3
_MAX_LISTINGS = 5

FROM_SCRATCH = "to train from scratch, use another run name or pass resume=False (--no-resume)"

# called with the facts and the step of a complete checkpoint, and raises to refuse it
Check = Callable[[Mapping[str, Any], int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCheckpoint:
    """Facts about the checkpoint that was loaded into the objects of the state."""

    step: int
    epoch: int | None
    facts: Mapping[str, Any]
    folder: str
    world_size: int  # world size of the run that saved it
    is_rng_restored: bool  # False if the world size changed, which reseeds the generators
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
    """Load the newest checkpoint that is complete and fits, or only the one of `step`.

    Writes and removes nothing. A training that is saving may remove the checkpoint that is being read. So
    if no checkpoint could be used and the folder has changed, this lists the folder again.
    """
    load = _Load(storage=storage, context=context, state=state, check=check, trust=trust)
    for _ in range(_MAX_LISTINGS):
        listed = load.list_checkpoints(step)
        if step is not None and not listed:
            raise SpecError(f"step-{step} not found in {storage.root}", hint=_list_steps(storage))
        load.refuse_foreign(listed)
        loaded, refused = load.load_first(listed)
        if loaded is not None or not refused:
            return loaded
        if load.list_checkpoints(step) == listed:
            break
        logger.warning("%s changed while it was read, so it is listed again", storage.root)
    raise SpecError(
        f"no checkpoint in {storage.root} can be used: {' | '.join(refused)}",
        hint=FROM_SCRATCH,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    """Folder named like a checkpoint, with its manifest or the reason why the manifest is not valid."""

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
        """Return a key that sorts folders without a manifest first, then the newest checkpoint first."""
        return (-(10**9), -self.step) if self.manifest is None else (-self.manifest.number, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """Load that all ranks perform together."""

    storage: Storage
    context: Context
    state: Mapping[str, Any]
    check: Check | None
    trust: bool

    def list_checkpoints(self, step: int | None) -> list[_Listed]:
        """Return the folders that rank 0 sees, newest first."""
        seen: list[tuple[str, str]] = []
        if self.context.is_main:
            for folder, manifest in (*read_manifests(self.storage), *read_replaced(self.storage)):
                value = asdict(manifest) if isinstance(manifest, CheckpointManifest) else manifest
                seen.append((folder, json.dumps(value)))
        listed = [_Listed.read(folder, text) for folder, text in self.context.broadcast(seen)]
        wanted = [one for one in listed if step is None or one.step == step]
        return sorted(wanted, key=_Listed.sort_key)

    def refuse_foreign(self, listed: list[_Listed]) -> None:
        """Raise SpecError on every rank if another user owns the run or one of these checkpoints."""
        foreign = ""
        if self.context.is_main and not self.trust:
            names = [""]
            for one in listed:
                files = one.manifest.files if one.manifest else ()
                names += [one.folder, *(f"{one.folder}/{name}" for name in (MANIFEST, *files))]
            foreign = find_foreign(self.storage, names)
        if foreign := self.context.broadcast(foreign):
            raise SpecError(f"{foreign}; refusing to load it", hint=TRUST_HINT)

    def load_first(self, listed: list[_Listed]) -> tuple[LoadedCheckpoint | None, list[str]]:
        """Load the first usable checkpoint. Also return why the ones before it cannot be used."""
        refused: list[str] = []
        damaged: set[int] = set()
        for one in listed:
            manifest, reader, faults = one.manifest, None, [one.fault]
            if manifest is not None:
                reader, faults = self._check(one.folder, manifest)
                if reader is None:
                    damaged.add(one.step)
                elif not faults and not (faults := self._read(one.folder, manifest, reader)):
                    return self._describe(one.folder, manifest, frozenset(damaged)), refused
            why = "; ".join(faults[:_FAULTS_SHOWN]) + (
                " ..." if len(faults) > _FAULTS_SHOWN else ""
            )
            # in a storage that cannot rename, the folder of an interrupted save has its final name
            if self.storage.can_rename or one.fault != UNFINISHED:
                refused.append(f"{one.folder}: {why}")
            if self.context.is_main:
                root = self.storage.root
                logger.warning("checkpoint %s/%s cannot be used: %s", root, one.folder, why)
        return None, refused

    def _describe(
        self, folder: str, manifest: CheckpointManifest, damaged: frozenset[int]
    ) -> LoadedCheckpoint:
        return LoadedCheckpoint(
            step=manifest.step,
            epoch=manifest.epoch,
            facts=manifest.facts,
            folder=f"{self.storage.root}/{folder}",
            world_size=manifest.world_size,
            is_rng_restored=manifest.world_size == self.context.world_size,
            damaged=damaged,
        )

    def _check(
        self, folder: str, manifest: CheckpointManifest
    ) -> tuple[ShareReader | None, list[str]]:
        """Return a reader if the files are intact, and the faults that all ranks have found."""
        context, storage = self.context, self.storage
        faults = find_size_faults(storage, folder, manifest) if context.is_main else []
        faults = context.broadcast(faults)
        if not faults:
            files = sorted(manifest.files, key=lambda name: manifest.files[name].size)
            own = files[context.rank :: context.world_size]
            faults = self._gather_faults(find_hash_faults(storage, folder, manifest, own))
        if faults:
            return None, faults
        if self.check is not None:
            self.check(manifest.facts, manifest.step)
        reader, faults = None, []
        try:
            reader = ShareReader(storage, folder, manifest)
            faults = find_faults(self.state, reader.contents)
        except Exception as error:  # noqa: BLE001 - anything that DCP raises for files of another version
            faults = [_unreadable(error)]
        return reader, self._gather_faults(faults)

    def _gather_faults(self, own: list[str]) -> list[str]:
        """Return the faults that the ranks have found, without duplicates."""
        return list(dict.fromkeys(fault for faults in self.context.gather(own) for fault in faults))

    def _read(self, folder: str, manifest: CheckpointManifest, reader: ShareReader) -> list[str]:
        """Read the checkpoint, and restore the state if every rank could read it. Return the faults."""
        others: dict[str, Any] = {}
        refusal, faults = "", []
        try:
            others = reader.read_others(list_others(self.state), allow_pickle=self.trust)
        except NeedsTrustError as error:
            refusal = error.message
        except Exception as error:  # noqa: BLE001 - reported to all ranks
            faults = [_unreadable(error)]
        if refusals := [one for one in self.context.gather(refusal) if one]:
            raise SpecError(f"{self.storage.root}/{folder}: {refusals[0]}", hint=TRUST_HINT)
        if faults := self._gather_faults(faults):
            return faults
        targets = make_targets(self.state, others, reader.contents)
        tensors: dict[str, Any] = {}
        rng = b""
        try:
            tensors = reader.read(targets)
            if manifest.world_size == self.context.world_size:
                rng = self.storage.read(f"{folder}/rank-{self.context.rank}/{RNG}")
        except Exception as error:  # noqa: BLE001 - reported to all ranks
            faults = [_unreadable(error)]
        if faults := self._gather_faults(faults):
            return faults
        restore_state(self.state, others, tensors)
        if rng:
            restore_rng(rng)
        else:
            derive_rng(
                seed=int(manifest.facts.get("seed") or 0),
                step=manifest.step,
                rank=self.context.rank,
                world_size=self.context.world_size,
            )
        return []


def _unreadable(error: Exception) -> str:
    return f"it cannot be read: {type(error).__name__}: {error}"


def _list_steps(storage: Storage) -> str:
    folders = [folder for folder, _ in read_manifests(storage)]
    return f"it contains {', '.join(folders)}" if folders else "it contains no checkpoint"
