"""Selection of a project's root and files: those that git lists, or a whole folder without ignored files.

Reads .gitignore-like rules with pathspec, which is imported only if there are rules. For clients only.
"""

from __future__ import annotations

import functools
import logging
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.errors import BundleError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec


_TEMPORARY = ("/tmp", "/var/tmp", "/private/tmp")  # noqa: S108 - never written to
MARKERS = (".git", "pyproject.toml", "windlass.toml", "setup.py")
GIT_FILE = ".gitignore"
OWN_FILE = ".windlassignore"
logger = logging.getLogger(__name__)

SKIPPED_NAMES = frozenset(
    {".git", ".hg", ".svn", "__pycache__", "node_modules", ".ipynb_checkpoints", ".DS_Store"}
)
SKIPPED_SUFFIXES = (".pyc", ".pyo")
VENV_MARKER = "pyvenv.cfg"
_GIT_LIMIT_S = 60


def find_root(target: Path) -> Path:
    """Return the nearest folder at or above `target` that holds a marker, else the target's own folder.

    The home folder and its parents never count as a project. Otherwise, a home folder with its dotfiles in
    git would be uploaded completely. Without a marker, any target's folder is accepted, because a local run
    copies nothing. `check_root` rejects folders that are too broad if files must be sent.
    """
    target = _existing(target)
    own = target if target.is_dir() else target.parent
    for folder in (own, *own.parents):
        if _too_wide(folder):
            break
        if is_project_root(folder):
            return folder
    return own


def is_project_root(folder: Path) -> bool:
    """Return whether `folder` itself contains a marker."""
    return any(os.path.lexists(folder / marker) for marker in MARKERS)


def check_root(root: Path) -> Path:
    """Return `root` with links resolved. Raise BundleError if its files cannot be sent."""
    root = _existing(root)
    if not root.is_dir():
        raise BundleError(
            f"the project root {root} is not a folder",
            hint="pass the folder that contains the script",
        )
    if _too_wide(root):
        raise BundleError(
            f"the project root would be {root}, which contains far more than a project",
            hint="move the code into a separate folder",
        )
    return root


def _existing(path: Path) -> Path:
    try:
        return path.resolve(strict=True)
    except FileNotFoundError as error:
        raise BundleError(
            f"{path} does not exist", hint=f"check the spelling; paths are relative to {Path.cwd()}"
        ) from error
    except (OSError, RuntimeError) as error:
        raise BundleError(
            f"cannot read {path}: {error}", hint="check its permissions and its links"
        ) from error


def _too_wide(folder: Path) -> bool:
    """Return whether `folder` is `/`, the home folder, one of its parents, or a temporary folder."""
    if str(folder) in (*_TEMPORARY, os.environ.get("TMPDIR", "").rstrip("/")):
        return True
    try:
        home = Path.home().resolve()
    except (OSError, RuntimeError):
        return folder == folder.parent
    return folder == folder.parent or home.is_relative_to(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoreFile:
    """One ignore file. `prefix` is its folder with a trailing slash, or empty at the root."""

    prefix: str
    spec: GitIgnoreSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The ignore files from the root down to one folder."""

    layers: tuple[IgnoreFile, ...] = ()
    negates: bool = False

    def verdict(self, path: str) -> bool | None:
        """Return True for an ignored path, False for one included with `!`, or None without a rule.

        The path of a folder must have a trailing slash.
        """
        for layer in reversed(self.layers):
            if path.startswith(layer.prefix):
                is_included = layer.spec.check_file(path[len(layer.prefix) :]).include
                if is_included is not None:
                    return is_included
        return None


NO_RULES = Rules()


def add_file(rules: Rules, root: Path, path: str) -> Rules:
    """Return `rules` with the ignore file at `path` (relative to `root`) as the next deeper layer."""
    from pathspec import (
        GitIgnoreSpec,
    )  # imported on use, because many projects need only git's list

    try:
        lines = (root / path).read_text("utf-8-sig", errors="surrogateescape").splitlines()
        spec = GitIgnoreSpec.from_lines(lines)
    except (OSError, ValueError) as error:
        raise BundleError(
            f"cannot read the ignore file {path}: {error}",
            hint="correct the line, or delete the file",
        ) from error
    return Rules(
        layers=(*rules.layers, IgnoreFile(prefix=path[: path.rfind("/") + 1], spec=spec)),
        negates=rules.negates or any(line.startswith("!") for line in lines),
    )


def select_files(root: Path) -> tuple[str, ...]:
    """Return the sorted paths of the files to send, relative to `root`, with forward slashes."""
    root = check_root(root)
    listed = _list_git(root)
    chosen = set(_walk(root)) if listed is None else _filter(root, listed)
    if not chosen:
        raise BundleError(
            f"no files to send: {root} is empty, or all of its files are ignored",
            hint=f"include files in {OWN_FILE} with a line such as `!train.py`",
        )
    return tuple(sorted(chosen))


def _filter(root: Path, listed: list[str]) -> set[str]:
    """Return the files to send: git's list without ignored ones, and ignored ones that `!` includes."""
    usable = _make_usable(root)
    kept = [path for path in listed if usable(path)]
    own_files = {path for path in kept if path.rpartition("/")[2] == OWN_FILE}
    if (root / OWN_FILE).is_file():
        own_files.add(OWN_FILE)
    own = NO_RULES
    for path in sorted(own_files, key=lambda path: (path.count("/"), path)):
        own = add_file(own, root, path)
    chosen = {path for path in kept if own.verdict(path) is not True}
    if own.negates:
        chosen.update(_walk(root, hidden=True))
    return chosen


def _make_usable(root: Path) -> Callable[[str], bool]:
    """Return a predicate for paths that exist, are not skipped by name, and are only below real folders.

    Git still lists the files of a folder that was replaced by a link. Only the link itself is sent.
    """

    @functools.cache
    def is_usable_folder(folder: str) -> bool:
        above, _, _ = folder.rpartition("/")
        if above and not is_usable_folder(above):
            return False
        return not _is_skipped_folder(root / folder)

    def is_usable(path: str) -> bool:
        folder, _, name = path.rpartition("/")
        if _is_skipped_name(name) or (folder and not is_usable_folder(folder)):
            return False
        return os.path.lexists(root / path)

    return is_usable


def _is_skipped_name(name: str) -> bool:
    return name in SKIPPED_NAMES or name.endswith(SKIPPED_SUFFIXES)


def _is_skipped_folder(folder: Path) -> bool:
    if folder.name in SKIPPED_NAMES or os.path.lexists(folder / VENV_MARKER):
        return True
    return folder.is_symlink() or not folder.is_dir()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Folder:
    """A folder that has not been read yet, with the rules that apply to it."""

    path: str  # ends with a slash, except for the root
    git: Rules
    own: Rules
    hidden: bool  # git ignores it


def _walk(root: Path, *, hidden: bool = False) -> Iterator[str]:
    """Yield every file to send below `root`, at any depth. `hidden` means that git ignores all of them."""
    waiting = [_Folder(path="", git=NO_RULES, own=NO_RULES, hidden=hidden)]
    while waiting:
        folder = waiting.pop()
        try:
            entries = sorted(os.scandir(root / folder.path), key=lambda entry: entry.name)
        except OSError:
            # Yield the unreadable folder itself, so that `find_problems` refuses it by name.
            yield folder.path.rstrip("/") or "."
            continue
        for path_or_folder in _scan_folder(root, folder, entries):
            if isinstance(path_or_folder, str):
                yield path_or_folder
            else:
                waiting.append(path_or_folder)


def _scan_folder(
    root: Path, folder: _Folder, entries: list[os.DirEntry[str]]
) -> Iterator[str | _Folder]:
    git, own = folder.git, folder.own
    for entry in entries:
        if entry.is_file(follow_symlinks=False):
            if entry.name == GIT_FILE:
                git = add_file(git, root, folder.path + entry.name)
            elif entry.name == OWN_FILE:
                own = add_file(own, root, folder.path + entry.name)
    for entry in entries:
        is_folder = entry.is_dir(follow_symlinks=False)
        if _is_skipped_name(entry.name) or (is_folder and _is_skipped_folder(Path(entry.path))):
            continue
        path = f"{folder.path}{entry.name}/" if is_folder else folder.path + entry.name
        verdict = own.verdict(path)
        ignored = folder.hidden or git.verdict(path) is True
        left_out = verdict is True or (ignored and verdict is None)
        if is_folder and not (left_out and not own.negates):
            yield _Folder(path=path, git=git, own=own, hidden=ignored)
        elif not is_folder and not left_out:
            yield path


def _list_git(root: Path) -> list[str] | None:
    """Return git's list of tracked files and untracked files that are not ignored, below `root`.

    Return None without git, or if the list is empty. An empty list means that an outer repository ignores
    the root itself.
    """
    # A git hook's GIT_DIR may name another repository, and a repository's fsmonitor would run a program.
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "-c", "core.fsmonitor=false", "ls-files", "-co", "--exclude-standard", "-z"]
    try:
        done = subprocess.run(
            command, cwd=root, env=env, capture_output=True, check=True, timeout=_GIT_LIMIT_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        logger.debug("git cannot list %s, so all of its files are walked: %s", root, error)
        return None
    listed: list[str] = []
    for path in filter(None, os.fsdecode(done.stdout).split("\0")):
        listed.extend(_expand(root, path))
    return listed or None


def _expand(root: Path, path: str) -> Iterator[str]:
    """Yield `path` itself, or the files of a submodule or inner repository that git lists as one name."""
    folder = root / path
    try:
        is_folder = stat.S_ISDIR(folder.lstat().st_mode)
    except OSError:
        is_folder = False
    if not is_folder:
        yield path
        return
    # For a folder without its own .git, git would list the outer repository again.
    inner = _list_git(folder) if (folder / ".git").exists() else None
    for name in _walk(folder) if inner is None else inner:
        yield f"{path.rstrip('/')}/{name}"
