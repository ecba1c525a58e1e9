"""From a project root to a bundle in one call: select, check, refuse, hash.

The entry for callers; each step can be had alone from its own module. Locally nothing is copied: the
digest of the manifest tells whether the code changed, the delta tells what a node lacks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from windlass.bundle.check import DEFAULT_LIMITS, Finding, Limits, find_problems, refuse
from windlass.bundle.manifest import Manifest
from windlass.bundle.root import check_root
from windlass.bundle.scan import StatCache, scan
from windlass.bundle.select import select_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A checked project: where it lies, what of it travels, and what the user should be told."""

    root: Path
    manifest: Manifest
    warnings: tuple[Finding, ...] = ()


def collect(
    root: Path,
    *,
    allow: tuple[str, ...] = (),
    limits: Limits = DEFAULT_LIMITS,
    cache: StatCache | None = None,
) -> Bundle:
    """The bundle of the project at `root`; a BundleError names all that must not travel."""
    root = check_root(root)
    paths = select_files(root)
    findings = find_problems(root, paths, allow=allow, limits=limits)
    refuse(findings)
    return Bundle(root=root, manifest=scan(root, paths, cache=cache), warnings=findings)
