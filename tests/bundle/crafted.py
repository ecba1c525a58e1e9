"""Archives as an attacker would write them. Nothing is checked, and everything can be expressed."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable

from windlass import records
from windlass.bundle.manifest import EMPTY, Delta, FileEntry, digest_of


def entry_of(path: str, content: bytes = b"", **changes: object) -> FileEntry:
    fields = {"size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(), **changes}
    return FileEntry(path=path, **fields)  # type: ignore[arg-type]


def link_of(path: str, target: str) -> FileEntry:
    return FileEntry(path=path, link=target)


def delta_of(entries: Iterable[FileEntry], **changes: object) -> Delta:
    written = tuple(sorted(entries, key=lambda entry: entry.path))
    fields = {"base": EMPTY.digest, "digest": digest_of(written), "written": written, **changes}
    return Delta(**fields)  # type: ignore[arg-type]


def member(name: str, content: bytes = b"", **changes: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in changes.items():
        setattr(info, key, value)
    return info, content


def packed(members: Iterable[tuple[tarfile.TarInfo, bytes]]) -> io.BytesIO:
    out = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=out, mode="wb") as zipped,
        tarfile.TarFile(fileobj=zipped, mode="w") as tar,
    ):
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    out.seek(0)
    return out


def header(delta: object) -> tuple[tarfile.TarInfo, bytes]:
    return member("delta.json", json.dumps(records.to_json(delta)).encode())


def archive_of(delta: Delta, contents: dict[str, bytes]) -> io.BytesIO:
    files = [entry for entry in delta.written if entry.link is None]
    bodies = [member(f"files/{entry.path}", contents.get(entry.path, b"")) for entry in files]
    return packed([header(delta), *bodies])
