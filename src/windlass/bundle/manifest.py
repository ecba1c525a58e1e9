"""Manifest: the files of a project by path, size and digest, and what differs between two of them.

Paths are checked here: what may stand in a manifest may be written below a folder. Travels with the agent:
the standard library alone. Pure.
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
    """Why `path` cannot be the name of a file in a bundle."""
    fault = _text_fault(path)
    if fault:
        return fault
    parts = path.split("/")
    if ".." in parts:
        return "climbs with `..`"
    if "" in parts or "." in parts:
        return "has an empty or `.` part"
    return None


def link_fault(path: str, target: str) -> str | None:
    """Why a link at `path` may not point at `target`.

    `..` may only lead. The folders above `path` are real ones, so leading `..` can be counted;
    behind another link it could not, and would climb out of the root while the text stays inside.
    """
    fault = _text_fault(target)
    if fault:
        return fault
    parts = [part for part in target.split("/") if part not in ("", ".")]
    climbs = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
    if climbs > path.count("/"):
        return "leaves the root"
    if ".." in parts[climbs:]:
        return "climbs with `..` behind a name"
    return None


def parents_of(path: str) -> tuple[str, ...]:
    """The folders above `path`, nearest first, without the root."""
    parts = path.split("/")
    return tuple("/".join(parts[:count]) for count in range(len(parts) - 1, 0, -1))


def shown(path: str) -> str:
    """`path` for a message: what a terminal might obey, or could not encode, is escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in path)


def _text_fault(text: str) -> str | None:
    if not text:
        return "is empty"
    if "\0" in text:
        return "holds a NUL"
    if text.startswith("/"):
        return "is absolute"
    if "\\" in text:
        return "holds a backslash, a folder on other systems"
    if _DRIVE.match(text):
        return "starts with a drive letter"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "is not UTF-8"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file, or one link when `link` is its target; a link has no size and no hash."""

    path: str
    size_bytes: int = 0
    sha256: str = ""
    executable: bool = False
    link: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All files of a bundle, sorted by path, and the digest that names this content."""

    entries: tuple[FileEntry, ...]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What turns the bundle named `base` into the one named `digest`."""

    base: str
    digest: str
    written: tuple[FileEntry, ...]
    removed: tuple[str, ...] = ()
    version: int = VERSION


def make_manifest(entries: Iterable[FileEntry]) -> Manifest:
    """The manifest of `entries`; a BundleError when they cannot stand together in one folder."""
    ordered = tuple(sorted(entries, key=lambda entry: entry.path))
    paths: set[str] = set()
    for entry in ordered:
        fault = _entry_fault(entry)
        if entry.path in paths:
            fault = "is there twice"
        if fault:
            raise BundleError(
                f"{shown(entry.path)!r} cannot be in a bundle: it {fault}",
                hint="rename the file, or leave it out with .windlassignore",
            )
        paths.add(entry.path)
    for path in paths:
        for above in parents_of(path):
            if above in paths:
                raise BundleError(
                    f"{shown(above)} is both a file and the folder of {shown(path)}",
                    hint="leave one of them out with .windlassignore",
                )
    return Manifest(entries=ordered, digest=digest_of(ordered))


def digest_of(entries: Iterable[FileEntry]) -> str:
    """The digest of entries in path order."""
    whole = hashlib.sha256(f"windlass-bundle/{VERSION}\n".encode())
    for e in entries:
        line = json.dumps([e.path, e.size_bytes, e.sha256, e.executable, e.link])
        whole.update(line.encode() + b"\n")
    return whole.hexdigest()


EMPTY = make_manifest(())


def make_delta(old: Manifest, new: Manifest) -> Delta:
    """What to write and remove to come from `old` to `new`; from EMPTY it is everything."""
    before = {entry.path: entry for entry in old.entries}
    after = {entry.path for entry in new.entries}
    return Delta(
        base=old.digest,
        digest=new.digest,
        written=tuple(entry for entry in new.entries if before.get(entry.path) != entry),
        removed=tuple(entry.path for entry in old.entries if entry.path not in after),
    )


def apply_delta(old: Manifest, delta: Delta) -> Manifest:
    """The manifest after `delta`; a BundleError when it does not fit `old` or its own digest."""
    if delta.base != old.digest:
        raise BundleError(
            f"the delta starts from bundle {delta.base[:12]}, but bundle {old.digest[:12]} is here",
            hint="send the whole bundle once: a delta from the empty manifest",
        )
    entries = {entry.path: entry for entry in old.entries}
    for path in delta.removed:
        if entries.pop(path, None) is None:
            raise BundleError(
                f"the delta removes {shown(path)!r}, which is not part of the bundle",
                hint="send the whole bundle once: a delta from the empty manifest",
            )
    if len({entry.path for entry in delta.written}) != len(delta.written):
        raise BundleError("the delta writes a file twice", hint="send the bundle again")
    entries.update((entry.path, entry) for entry in delta.written)
    new = make_manifest(entries.values())
    if new.digest != delta.digest:
        raise BundleError(
            f"the delta gives bundle {new.digest[:12]}, but says {delta.digest[:12]}",
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
        return "has no proper size or hash"
    return None
