"""Copy of a run's folder to a URL at the end, without the files that were copied before and are unchanged.

Exported weights keep their size when they change. An index at the URL therefore records the size and the
modification time of each copied file. Object stores have no links, so links (`best`, `epoch-1`) become small
files that hold the name of their target. Needs fsspec. Called by `train_framework --sync-to`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from windlass.errors import EngineError, SpecError

_INDEX = "synced.json"  # size of each copied file, and its modification time here


def sync_folder(folder: Path, url: str) -> int:
    """Copy a folder to URL/<folder name> and verify the sizes. Return the number of files copied."""
    store, root = open_store(url)
    root = f"{root.rstrip('/')}/{folder.name}"
    index = _read_index(store, f"{root}/{_INDEX}")
    num_copied = 0
    try:
        for path, link in _list_files(folder):
            name = path.relative_to(folder).as_posix()
            status = path.lstat()
            facts = [len(link) if link else status.st_size, status.st_mtime_ns]
            is_same = not link and index.get(name) == facts
            if is_same and _size_of(store, f"{root}/{name}") == facts[0]:
                continue
            _copy(store, path, link, f"{root}/{name}")
            index[name] = facts
            num_copied += 1
    finally:
        if num_copied:
            store.pipe_file(f"{root}/{_INDEX}", json.dumps(index).encode())
    return num_copied


def _copy(store: Any, path: Path, link: str, target: str) -> None:
    parent = target.rpartition("/")[0]
    if store.isfile(parent):  # `export/best` was a link before and is now a folder
        store.rm_file(parent)
    store.makedirs(parent, exist_ok=True)
    if link:
        if store.isdir(target):  # a folder before and now a link
            store.rm(target, recursive=True)
        store.pipe_file(target, link.encode())
    else:
        store.put_file(str(path), target)
    size = len(link) if link else path.stat().st_size
    if (there := _size_of(store, target)) != size:
        raise EngineError(
            f"{target} has {there} bytes, but {path} has {size}", hint="run it again to resume"
        )


def _read_index(store: Any, path: str) -> dict[str, list[int]]:
    try:
        index = json.loads(store.cat_file(path))
    except (FileNotFoundError, ValueError):
        return {}
    return index if isinstance(index, dict) else {}


def _list_files(folder: Path) -> list[tuple[Path, str]]:
    """Return files, and links with their targets. Does not follow links to folders."""
    entries = []
    for parent, folders, files in os.walk(folder):
        for name in sorted([*files, *folders]):
            path = Path(parent, name)
            if path.is_symlink():
                entries.append((path, os.readlink(path)))
            elif name in files and ".tmp" not in path.relative_to(folder).as_posix():
                entries.append((path, ""))
    return entries


def open_store(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path on it. Does not connect yet."""
    try:
        from fsspec.core import url_to_fs
    except ModuleNotFoundError:
        raise SpecError(
            "--sync-to needs fsspec", hint="run `pip install fsspec` (and s3fs for s3://)"
        ) from None
    try:
        store, root = url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise SpecError(
            f"--sync-to {url}: {error}", hint="install the package for that protocol"
        ) from error
    return store, str(root)


def _size_of(store: Any, target: str) -> int | None:
    try:
        store.invalidate_cache()
        return int(store.info(target)["size"])
    except FileNotFoundError:
        return None
