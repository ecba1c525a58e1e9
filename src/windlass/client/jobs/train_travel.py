"""Whether work needs the training library, which then travels with it: images have no windlass.

Read from the source, the payload and the words of a command, without running anything. What is in an image
cannot be read here: there it travels in any case. Nothing here knows how it travels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from windlass import names
from windlass.client.jobs.project_imports import is_of_train, walk_imports
from windlass.client.jobs.target import WorkTarget, is_python
from windlass.spec.work import Command, Module

_NAMES = re.compile(rb"windlass\W{1,8}(?:train|recipes)\b")
_MAX_SHELL_BYTES = 1 << 16

TRAIN_ARCHIVE = (
    f"{names.FILES_FOLDER}/{names.TRAIN_FILE}"  # where pods have it; the value of `names.TRAIN`
)


def needs_train(target: WorkTarget, cwd: Path) -> bool:
    """Whether the work will import it, as far as can be read here."""
    work = target.work
    if isinstance(work, Command):
        return _is_named(work.argv, cwd)
    if isinstance(work, Module) and (is_of_train(work.name) or _is_named(work.args, cwd)):
        return True
    if target.payload is not None and _is_in_payload(target.payload):
        return True
    sources = (*target.packages, *([target.source] if target.source else []))
    return any(_imports_train(source, target.root or source.parent) for source in sources)


def _is_in_payload(payload: bytes) -> bool:
    """By a module's name, or as two names that stand in code apart from each other."""
    has_part = b"train" in payload or b"recipes" in payload
    return b"windlass" in payload and (bool(_NAMES.search(payload)) or has_part)


def _imports_train(source: Path, root: Path) -> bool:
    return any(level == 0 and is_of_train(name) for name, level in walk_imports(source, root))


def _is_named(words: Iterable[str], cwd: Path) -> bool:
    """Whether words name it, or a file that leads to it."""
    parts = [part for word in words for part in word.split()]
    if any(is_of_train(part) for part in parts):
        return True
    return any(_leads_there(path, cwd) for path in _find_files(parts, cwd))


def _leads_there(path: Path, cwd: Path) -> bool:
    if is_python(path):
        return _imports_train(path, path.parent)
    if path.stat().st_size > _MAX_SHELL_BYTES:
        return False
    text = path.read_bytes()
    if b"\0" in text:
        return False
    parts = text.decode(errors="replace").split()
    named = (file for file in _find_files(parts, cwd) if is_python(file))
    return any(map(is_of_train, parts)) or any(_imports_train(file, file.parent) for file in named)


def _find_files(parts: Iterable[str], cwd: Path) -> Iterator[Path]:
    for part in dict.fromkeys(parts):
        path = cwd / part.strip("\"';()")
        try:
            if path.is_file():
                yield path
        except (OSError, ValueError):  # longer than any file's name, or no name at all
            continue
