"""The project root of a target: the folder whose files may travel.

Called before anything is selected. Looks for marker files only; which files below the root travel
is decided in `select`.
"""

from __future__ import annotations

import os
from pathlib import Path

from windlass.errors import BundleError

_TEMPORARY = ("/tmp", "/var/tmp", "/private/tmp")  # noqa: S108 - never written to
MARKERS = (".git", "pyproject.toml", "windlass.toml", "setup.py")


def find_root(target: Path) -> Path:
    """The nearest folder at or above `target` that holds a marker, else the target's own folder.

    The home folder and what lies above it never count as a project, marker or not: dotfiles kept in
    git would send a whole home. Without a marker the own folder is returned even there, since a
    local run copies nothing; `check_root` refuses it when files are to travel.
    """
    target = _existing(target)
    own = target if target.is_dir() else target.parent
    for folder in (own, *own.parents):
        if _too_wide(folder):
            break
        if is_marked(folder):
            return folder
    return own


def is_marked(folder: Path) -> bool:
    """Whether `folder` itself holds a marker."""
    return any(os.path.lexists(folder / marker) for marker in MARKERS)


def check_root(root: Path) -> Path:
    """`root` with links resolved, or a BundleError that says why its files cannot travel."""
    root = _existing(root)
    if not root.is_dir():
        raise BundleError(
            f"the project root {root} is not a folder", hint="name the folder that holds the script"
        )
    if _too_wide(root):
        raise BundleError(
            f"the project root would be {root}, which holds far more than a project",
            hint="move the code into a folder of its own",
        )
    return root


def _existing(path: Path) -> Path:
    try:
        return path.resolve(strict=True)
    except FileNotFoundError as error:
        raise BundleError(
            f"{path} does not exist", hint=f"the path is taken from {Path.cwd()}; is it misspelled?"
        ) from error
    except (OSError, RuntimeError) as error:
        raise BundleError(
            f"{path} cannot be read: {error}", hint="check its permissions and its links"
        ) from error


def _too_wide(folder: Path) -> bool:
    """Whether `folder` is `/`, the home folder, one above it, or where everybody's temporary files are."""
    if str(folder) in (*_TEMPORARY, os.environ.get("TMPDIR", "").rstrip("/")):
        return True
    try:
        home = Path.home().resolve()
    except (OSError, RuntimeError):
        return folder == folder.parent
    return folder == folder.parent or home.is_relative_to(folder)
