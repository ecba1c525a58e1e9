"""Refuses checkpoints that another user of the machine has prepared: owners of folders and files.

A run in a shared folder may have been made by anybody. What this user or root owns is accepted, and what
the file system shows as owned by whoever this process is: network file systems map users to others. Object
stores have no owners of files; there the bucket's own rules decide. Called by checkpoints.py.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import tempfile
from collections.abc import Iterable
from pathlib import Path

from windlass.train.checkpoint_storage import Storage

_ROOT = 0


def find_foreign(storage: Storage, names: Iterable[str]) -> str:
    """Return which of these names under the root (empty: the root) another user owns, and who; or ""."""
    root = storage.local_path
    if root is None:
        return ""
    own = {os.geteuid(), _ROOT}
    is_probed = False
    for name in names:
        path = root / name if name else root
        for uid in _owners(path):
            if uid not in own and not is_probed:
                own |= _probe(root)
                is_probed = True
            if uid not in own:
                return f"{path} belongs to {_name_user(uid)}, not to {_name_user(os.geteuid())}"
    return ""


def _owners(path: Path) -> set[int]:
    """Return the owner of a path, and of the link that it may be; none if it is not there."""
    owners = set()
    for follow in (False, True):
        with contextlib.suppress(OSError):
            owners.add(os.stat(path, follow_symlinks=follow).st_uid)
    return owners


def _probe(folder: Path) -> set[int]:
    """Return the owner that the file system gives to a file of this process."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return {os.fstat(file.fileno()).st_uid}
    except OSError:
        return set()


def _name_user(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"
