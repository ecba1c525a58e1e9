"""Search for a text in files, while other processes may add and remove files."""

from __future__ import annotations

import contextlib
from pathlib import Path


def files_with(folder: Path, text: str) -> list[Path]:
    """Return the files that contain the text. Fail if there are no files at all."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files, f"there is nothing below {folder}"
    return [path for path in files if text.encode() in _read_if_present(path)]


def _read_if_present(path: Path) -> bytes:
    with contextlib.suppress(FileNotFoundError):  # the file was removed
        return path.read_bytes()
    return b""
