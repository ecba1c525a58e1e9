"""Which files below a folder hold a text, while others may still come and go there."""

from __future__ import annotations

import contextlib
from pathlib import Path


def files_with(folder: Path, text: str) -> list[Path]:
    """The files that hold it; that there are files at all is part of what is looked at."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files, f"there is nothing below {folder}"
    return [path for path in files if text.encode() in _read_if_kept(path)]


def _read_if_kept(path: Path) -> bytes:
    with contextlib.suppress(FileNotFoundError):  # it was not kept: nothing is in it
        return path.read_bytes()
    return b""
