"""Manifest of a checkpoint: its files with their sizes and hashes, and the facts saved with it.

A checkpoint is complete when its manifest exists and every file has the size and the hash that the manifest
lists. Threads hash files in parallel, because hashlib releases the GIL.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Any

from windlass.train.checkpoint.checkpoint_storage import Storage

MANIFEST = "manifest.json"
UNFINISHED = f"it has no {MANIFEST}, so its save was interrupted"
FORMAT = 1
STEP_FOLDER = re.compile(r"step-(\d+)")
HALF_WRITTEN = re.compile(r"(step-\d+)\.(tmp|old|gone)-.*")
_HASH_THREADS = 4
_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """Size and hash of a checkpoint's file, computed while it was written."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointManifest:
    """Manifest of a checkpoint. A folder without one is not a checkpoint."""

    step: int
    epoch: int | None
    number: int  # increases with every save of the run, regardless of the step
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
    """Write the manifest, which makes the folder a complete checkpoint."""
    storage.write(f"{folder}/{MANIFEST}", json.dumps(asdict(manifest), indent=1).encode())


def read_manifest(storage: Storage, folder: str) -> CheckpointManifest:
    """Return the manifest of a folder. Raises ValueError with the reason if it is not valid."""
    try:
        values = json.loads(storage.read(f"{folder}/{MANIFEST}"))
    except FileNotFoundError:
        raise ValueError(UNFINISHED) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"its {MANIFEST} cannot be read: {error}") from error
    return parse_manifest(values, folder)


def parse_manifest(values: Any, folder: str) -> CheckpointManifest:
    """Return the manifest from its JSON values. Raises ValueError if it is not valid."""
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
        return f"it belongs to {manifest.folder}"
    if not isinstance(manifest.facts, dict):
        return "its facts are not a JSON object"
    for name, facts in manifest.files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            return f"it lists {name!r:.80}, which is outside the folder"
        if type(facts.size) is not int or not isinstance(facts.sha256, str):
            return f"the size or the hash of {name!r:.80} is not valid"
    return ""


def read_manifests(
    storage: Storage, *, exclude: str = ""
) -> Iterator[tuple[str, CheckpointManifest | str]]:
    """Yield the folders named like a checkpoint, with the manifest or the reason why it is not valid."""
    for folder in storage.names():
        if STEP_FOLDER.fullmatch(folder) and folder != exclude:
            try:
                yield folder, read_manifest(storage, folder)
            except ValueError as error:
                yield folder, str(error)


def read_replaced(storage: Storage) -> Iterator[tuple[str, CheckpointManifest]]:
    """Yield checkpoints that a save moved aside to replace, while the new one does not exist yet."""
    names = set(storage.names())
    for folder in sorted(names):
        match = HALF_WRITTEN.fullmatch(folder)
        if match is not None and match[2] == "old" and match[1] not in names:
            with contextlib.suppress(ValueError):
                yield folder, read_manifest(storage, folder)


def find_whole(storage: Storage, *, exclude: str = "") -> list[CheckpointManifest]:
    """Return the checkpoints that have a manifest, newest first. Their files are not checked.

    exclude: a folder to skip. Its manifest is not requested, because an object store could then cache that it
    does not exist.
    """
    manifests = [
        manifest
        for _, manifest in read_manifests(storage, exclude=exclude)
        if isinstance(manifest, CheckpointManifest)
    ]
    return sorted(manifests, key=lambda manifest: (manifest.number, manifest.step), reverse=True)


def find_size_faults(storage: Storage, folder: str, manifest: CheckpointManifest) -> list[str]:
    """Return a message for each file of a folder that is missing, too short or too long."""
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
    """Return a message for each file that is unreadable or has changed."""

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
    """Return the SHA-256 hash of a file as hex digits."""
    digest = hashlib.sha256()
    with storage.open(name, "rb") as stream:
        while chunk := stream.read(_READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
