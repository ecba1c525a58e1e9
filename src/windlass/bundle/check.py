"""What must not travel: secrets, links that leave, devices, files too large or not readable.

`find_problems` looks and returns findings, by name; `refuse` turns refusals into one error. Nothing
is changed. What looks like a secret is for `suspects` to say.
"""

from __future__ import annotations

import enum
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from windlass.bundle.ignore import OWN_FILE
from windlass.bundle.paths import parents_of, path_fault, shown
from windlass.bundle.scan import read_link
from windlass.bundle.secret_scan import Suspicion, suspect
from windlass.errors import BundleError

MIB = 1 << 20
_LISTED = 20


class FindingKind(str, enum.Enum):
    """What is wrong with a file."""

    CREDENTIAL = "credential"
    TOO_LARGE = "too-large"
    TOTAL_TOO_LARGE = "total-too-large"
    LINK_LEAVES = "link-leaves"
    LINK_DANGLES = "link-dangles"
    SPECIAL = "special"
    UNREADABLE = "unreadable"
    NAME = "name"


class Severity(str, enum.Enum):
    """Whether the bundle is refused, or the user only told."""

    REFUSE = "refuse"
    WARN = "warn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that travels; a file allowed by name may be larger than `file_bytes`."""

    file_bytes: int = 100 * MIB
    total_bytes: int = 1024 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One file that must not, or perhaps should not, travel; the message says what to do."""

    path: str
    kind: FindingKind
    severity: Severity
    message: str


DEFAULT_LIMITS = Limits()


def find_problems(
    root: Path,
    paths: Iterable[str],
    *,
    allow: tuple[str, ...] = (),
    limits: Limits = DEFAULT_LIMITS,
) -> tuple[Finding, ...]:
    """All findings for `paths` below `root`, in their order; `allow` holds shell patterns."""
    paths = tuple(paths)
    travelling = {above for path in paths for above in (path, *parents_of(path))}
    findings: list[Finding] = []
    sizes: dict[str, int] = {}
    for path in paths:
        finding = _check_one(root, path, travelling, allow, limits, sizes)
        if finding:
            findings.append(finding)
    total_bytes = sum(sizes.values())
    if total_bytes > limits.total_bytes:
        findings.append(_total_too_large(sizes, total_bytes, limits))
    return tuple(findings)


def refuse(findings: Iterable[Finding]) -> None:
    """Raise one BundleError that names every refusal; warnings pass."""
    refused = [finding for finding in findings if finding.severity is Severity.REFUSE]
    if not refused:
        return
    lines = [f"  {shown(finding.path)}: {finding.message}" for finding in refused[:_LISTED]]
    if len(refused) > _LISTED:
        lines.append(f"  and {len(refused) - _LISTED} more")
    count = "1 file" if len(refused) == 1 else f"{len(refused)} files"
    raise BundleError(
        f"{count} must not travel:\n" + "\n".join(lines),
        hint=f"a line in {OWN_FILE} leaves a file at home (gitignore syntax)",
    )


def _check_one(
    root: Path,
    path: str,
    travelling: set[str],
    allow: tuple[str, ...],
    limits: Limits,
    sizes: dict[str, int],
) -> Finding | None:
    fault = path_fault(path) if path != "." else None
    if fault:
        return _refusal(
            path, FindingKind.NAME, f"the name {fault}; rename it or add it to {OWN_FILE}"
        )
    try:
        status = (root / path).lstat()
        if stat.S_ISLNK(status.st_mode):
            return _check_link(root, path, travelling)
        if stat.S_ISDIR(status.st_mode):
            return _refusal(
                path, FindingKind.UNREADABLE, _unreadable("the folder cannot be listed")
            )
        if not stat.S_ISREG(status.st_mode):
            message = f"a device, pipe or socket cannot be copied; add it to {OWN_FILE}"
            return _refusal(path, FindingKind.SPECIAL, message)
        sizes[path] = status.st_size
        return _check_file(root, path, status.st_size, allow, limits)
    except OSError as error:
        return _refusal(path, FindingKind.UNREADABLE, _unreadable(error.strerror or str(error)))


def _check_file(
    root: Path, path: str, size_bytes: int, allow: tuple[str, ...], limits: Limits
) -> Finding | None:
    with (root / path).open("rb"):
        pass
    name = path.rpartition("/")[2]
    if any(fnmatchcase(path, pattern) or fnmatchcase(name, pattern) for pattern in allow):
        return None
    suspicion = suspect(root / path, path, size_bytes)
    if suspicion is not None:
        return _secret(path, suspicion)
    if size_bytes > limits.file_bytes:
        message = (
            f"{_mib(size_bytes)} is over the limit of {_mib(limits.file_bytes)} a file; add it to "
            f"{OWN_FILE} and read it from a volume, or allow it by name"
        )
        return _refusal(path, FindingKind.TOO_LARGE, message)
    return None


def _check_link(root: Path, path: str, travelling: set[str]) -> Finding | None:
    link = root / path
    real_root = os.path.realpath(root)
    reached = os.path.realpath(link)
    if reached != real_root and not reached.startswith(real_root.rstrip("/") + "/"):
        message = (
            f"the link leaves the root, to {shown(str(link.readlink()))}; add it to {OWN_FILE}"
        )
        return _refusal(path, FindingKind.LINK_LEAVES, message)
    inside = os.path.relpath(reached, real_root)
    if inside != "." and inside not in travelling:
        target = shown(read_link(Path(real_root), path))
        message = f"the link's target {target} does not travel, so it will lead nowhere"
        return Finding(
            path=path, kind=FindingKind.LINK_DANGLES, severity=Severity.WARN, message=message
        )
    return None


def _secret(path: str, suspicion: Suspicion) -> Finding:
    if suspicion.certain:
        message = f"{suspicion.reason}; add it to {OWN_FILE}, or allow it by name"
        return _refusal(path, FindingKind.CREDENTIAL, message)
    message = f"{suspicion.reason}; it travels unless {OWN_FILE} names it"
    return Finding(path=path, kind=FindingKind.CREDENTIAL, severity=Severity.WARN, message=message)


def _total_too_large(sizes: dict[str, int], total_bytes: int, limits: Limits) -> Finding:
    largest = sorted(sizes, key=lambda path: (-sizes[path], path))[:3]
    named = ", ".join(f"{shown(path)} ({_mib(sizes[path])})" for path in largest)
    message = (
        f"all files together are {_mib(total_bytes)}, over the limit of "
        f"{_mib(limits.total_bytes)}; largest: {named}"
    )
    return _refusal(".", FindingKind.TOTAL_TOO_LARGE, message)


def _refusal(path: str, kind: FindingKind, message: str) -> Finding:
    return Finding(path=path, kind=kind, severity=Severity.REFUSE, message=message)


def _unreadable(why: str) -> str:
    return f"{why}; correct its permissions or add it to {OWN_FILE}"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:.1f} MiB"
