"""Manifest: the files of a project by path, size and digest, and the delta between two manifests.

This module checks the paths. Every path that a manifest accepts is safe to write below a folder. It runs in
the agent, so it uses only the standard library. It performs no I/O.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from windlass.errors import BundleError

_DRIVE = re.compile(r"[A-Za-z]:")
VERSION = 1
_SHA256 = re.compile(r"[0-9a-f]{64}")


def path_fault(path: str) -> str | None:
    """Return why `path` cannot be the name of a file in a bundle, or None if it can."""
    fault = _text_fault(path)
    if fault:
        return fault
    parts = path.split("/")
    if ".." in parts:
        return "contains `..`"
    if "" in parts or "." in parts:
        return "has an empty or `.` part"
    return None


def link_fault(path: str, target: str) -> str | None:
    """Return why a link at `path` may not point at `target`, or None if it may.

    `..` is allowed only at the start. The folders above `path` are real, so leading `..` parts can be
    counted. A `..` behind another link could leave the root even if the text stays inside.
    """
    fault = _text_fault(target)
    if fault:
        return fault
    parts = [part for part in target.split("/") if part not in ("", ".")]
    num_leading = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
    if num_leading > path.count("/"):
        return "leaves the root"
    if ".." in parts[num_leading:]:
        return "contains `..` after a name"
    return None


def parents_of(path: str) -> tuple[str, ...]:
    """Return the folders above `path`, nearest first, without the root."""
    parts = path.split("/")
    return tuple("/".join(parts[:count]) for count in range(len(parts) - 1, 0, -1))


def shown(path: str) -> str:
    """Return `path` for a message. Escapes control and other unprintable characters."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in path)


def _text_fault(text: str) -> str | None:
    if not text:
        return "is empty"
    if "\0" in text:
        return "contains a NUL character"
    if text.startswith("/"):
        return "is absolute"
    if "\\" in text:
        return "has a backslash, which separates folders on other systems"
    if _DRIVE.match(text):
        return "starts with a drive letter"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "is not UTF-8"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file, or one link if `link` has its target. A link has no size and no hash."""

    path: str
    size_bytes: int = 0
    sha256: str = ""
    executable: bool = False
    link: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All files of a bundle, sorted by path, and the digest of its content."""

    entries: tuple[FileEntry, ...]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """Changes that turn the bundle with digest `base` into the one with `digest`."""

    base: str
    digest: str
    written: tuple[FileEntry, ...]
    removed: tuple[str, ...] = ()
    version: int = VERSION


def make_manifest(entries: Iterable[FileEntry]) -> Manifest:
    """Return the manifest of `entries`. Raise BundleError if they cannot be in one folder together."""
    ordered = tuple(sorted(entries, key=lambda entry: entry.path))
    paths: set[str] = set()
    for entry in ordered:
        fault = _entry_fault(entry)
        if entry.path in paths:
            fault = "is listed twice"
        if fault:
            raise BundleError(
                f"{shown(entry.path)!r} cannot be in a bundle: it {fault}",
                hint="rename the file, or exclude it with .windlassignore",
            )
        paths.add(entry.path)
    for path in paths:
        for above in parents_of(path):
            if above in paths:
                raise BundleError(
                    f"{shown(above)} is both a file and a parent folder of {shown(path)}",
                    hint="exclude one of them with .windlassignore",
                )
    return Manifest(entries=ordered, digest=digest_of(ordered))


def digest_of(entries: Iterable[FileEntry]) -> str:
    """Return the digest of entries, which must be sorted by path."""
    whole = hashlib.sha256(f"windlass-bundle/{VERSION}\n".encode())
    for e in entries:
        line = json.dumps([e.path, e.size_bytes, e.sha256, e.executable, e.link])
        whole.update(line.encode() + b"\n")
    return whole.hexdigest()


EMPTY = make_manifest(())


def make_delta(old: Manifest, new: Manifest) -> Delta:
    """Return the changes from `old` to `new`. From EMPTY, this is everything."""
    before = {entry.path: entry for entry in old.entries}
    after = {entry.path for entry in new.entries}
    return Delta(
        base=old.digest,
        digest=new.digest,
        written=tuple(entry for entry in new.entries if before.get(entry.path) != entry),
        removed=tuple(entry.path for entry in old.entries if entry.path not in after),
    )


def apply_delta(old: Manifest, delta: Delta) -> Manifest:
    """Return the manifest after `delta`. Raise BundleError if it does not fit `old` or its own digest."""
    if delta.base != old.digest:
        raise BundleError(
            f"the delta starts from bundle {delta.base[:12]}, but this node has bundle {old.digest[:12]}",
            hint="send the complete bundle, as a delta from the empty manifest",
        )
    entries = {entry.path: entry for entry in old.entries}
    for path in delta.removed:
        if entries.pop(path, None) is None:
            raise BundleError(
                f"the delta removes {shown(path)!r}, which is not part of the bundle",
                hint="send the complete bundle, as a delta from the empty manifest",
            )
    if len({entry.path for entry in delta.written}) != len(delta.written):
        raise BundleError("the delta writes a file twice", hint="send the bundle again")
    entries.update((entry.path, entry) for entry in delta.written)
    new = make_manifest(entries.values())
    if new.digest != delta.digest:
        raise BundleError(
            f"the delta results in bundle {new.digest[:12]}, but states {delta.digest[:12]}",
            hint="send the bundle again",
        )
    return new


def _entry_fault(entry: FileEntry) -> str | None:
    fault = path_fault(entry.path)
    if fault:
        return fault
    if entry.link is not None:
        fault = link_fault(entry.path, entry.link)
        return f"is a link whose target {fault}" if fault else None
    if entry.size_bytes < 0 or not _SHA256.fullmatch(entry.sha256):
        return "has no valid size or hash"
    return None
