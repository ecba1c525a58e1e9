"""The manifest of a checkpoint: its files with their sizes and hashes, and what was said of the training.

A checkpoint is whole when its manifest is there and every file in it is as the manifest says. Read and
written by the modules of checkpoints; hashing runs in threads, since hashlib lets other threads go on.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from windlass.train.checkpoint_storage import Storage

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
    except (OSError, ValueError) as error:
        raise ValueError(f"its {MANIFEST} cannot be read: {error}") from error
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise ValueError(f"its {MANIFEST} is not of format {FORMAT}: another program wrote it")
    try:
        files = {name: FileFacts(**facts) for name, facts in values.pop("files").items()}
        return CheckpointManifest(files=files, **values)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"its {MANIFEST} is damaged: {error}") from error


def read_manifests(storage: Storage) -> Iterator[tuple[str, CheckpointManifest | str]]:
    """Every folder with a checkpoint's name, with its manifest or what is wrong with it."""
    for folder in storage.names():
        if STEP_FOLDER.fullmatch(folder):
            try:
                yield folder, read_manifest(storage, folder)
            except ValueError as error:
                yield folder, str(error)


def find_whole(storage: Storage) -> list[CheckpointManifest]:
    """The checkpoints that have a manifest, the newest first; their files are not looked at."""
    manifests = [
        manifest
        for _, manifest in read_manifests(storage)
        if isinstance(manifest, CheckpointManifest)
    ]
    return sorted(manifests, key=lambda manifest: manifest.number, reverse=True)


def find_size_faults(storage: Storage, manifest: CheckpointManifest) -> list[str]:
    """The files that are missing, too short or too long."""
    faults = []
    for name, facts in manifest.files.items():
        size = storage.size(f"{manifest.folder}/{name}")
        if size is None:
            faults.append(f"{name} is missing")
        elif size != facts.size:
            faults.append(f"{name} has {size} bytes instead of {facts.size}")
    return faults


def find_hash_faults(
    storage: Storage, manifest: CheckpointManifest, files: Sequence[str]
) -> list[str]:
    """Those of these files whose content is not what was written."""

    def check(name: str) -> str | None:
        try:
            digest = hash_file(storage, f"{manifest.folder}/{name}")
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
