"""Ignore rules in gitignore syntax, layered by folder: the deepest file that has an opinion wins.

The only place that knows pathspec. Used by `select`; never shipped to a node.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.errors import BundleError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

GIT_FILE = ".gitignore"
OWN_FILE = ".windlassignore"


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoreFile:
    """One ignore file; `prefix` is its folder with a trailing slash, empty at the root."""

    prefix: str
    spec: GitIgnoreSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The ignore files from the root down to one folder."""

    layers: tuple[IgnoreFile, ...] = ()
    negates: bool = False

    def verdict(self, path: str) -> bool | None:
        """True: ignored. False: asked for with `!`. None: no rule speaks of it.

        A folder is asked about with a trailing slash.
        """
        for layer in reversed(self.layers):
            if path.startswith(layer.prefix):
                is_included = layer.spec.check_file(path[len(layer.prefix) :]).include
                if is_included is not None:
                    return is_included
        return None


NO_RULES = Rules()


def add_file(rules: Rules, root: Path, path: str) -> Rules:
    """`rules` with the ignore file at `path` (relative to `root`) as the next deeper layer."""
    from pathspec import GitIgnoreSpec  # on use: many projects need only git's own list

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
