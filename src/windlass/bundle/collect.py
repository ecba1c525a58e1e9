"""Collection of a project's files into a Bundle. Refuses files that must not or cannot be sent.

First checks for secrets, large files, links that leave the project, and names that other systems do not
allow. `bundle.select` selects the files. Only clients use this module, and pathspec is imported on demand.
"""

from __future__ import annotations

import enum
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from windlass.bundle.manifest import Manifest, parents_of, path_fault, shown
from windlass.bundle.scan import StatCache, read_link, scan
from windlass.bundle.select import OWN_FILE, check_root, select_files
from windlass.errors import BundleError

SNIFFED_BYTES = 64 << 10

# Matched against the lower-case name. A pattern with a slash is matched against the end of the path.
SECRET_NAMES = (
    ".env",
    ".env.*",
    "*.env",
    ".envrc",
    "*.pem",
    "*.key",
    "*.ppk",
    "*.p12",
    "*.pfx",
    "*.jks",
    "*.keystore",
    "*.kdbx",
    "id_rsa*",
    "id_dsa*",
    "id_ecdsa*",
    "id_ed25519*",
    "kubeconfig",
    "kubeconfig.y*ml",
    "kubeconfig.json",
    "*.kubeconfig",
    ".kube/config",
    ".aws/credentials",
    ".docker/config.json",
    "credentials.json",
    "client_secret*.json",
    ".netrc",
    "_netrc",
    ".pgpass",
    ".pypirc",
    ".git-credentials",
    ".htpasswd",
    ".vault-token",
)
DOUBTFUL_NAMES = (
    ".npmrc",
    "secrets.y*ml",
    "secrets.json",
    "secrets.toml",
    "service-account*.json",
    "service_account*.json",
)
HARMLESS_NAMES = (".env.example", ".env.sample", ".env.template", ".env.dist", "id_*.pub")

_PUBLIC_LABELS = frozenset({b"CERTIFICATE", b"TRUSTED CERTIFICATE", b"PUBLIC KEY", b"X509 CRL"})
_LABEL = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----")
# Matches only at the start of a line, because a program may mention the header inside a line.
_PRIVATE_KEY = re.compile(
    rb"""^-----BEGIN\ (?:[A-Z0-9]+\ )*PRIVATE\ KEY(?:\ BLOCK)?-----\s*$
       | "private_key"\s*:\s*"-----BEGIN\ """,
    re.MULTILINE | re.VERBOSE,
)
_KUBECONFIG_KEY = re.compile(rb"^\s*client-key-data:\s*[\"']?[A-Za-z0-9+/]{40}", re.MULTILINE)
MIB = 1 << 20
_LISTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """Reason why a file looks like a secret. A `certain` secret is refused, others cause a warning."""

    reason: str
    certain: bool


def suspect(file: Path, path: str, size_bytes: int) -> Suspicion | None:
    """Return why `file`, named `path` in the bundle, looks like a secret, or None if it does not."""
    if _matches(path, HARMLESS_NAMES):
        return None
    content = b""
    if size_bytes <= SNIFFED_BYTES:
        with file.open("rb") as opened:
            content = opened.read(SNIFFED_BYTES)
    if _PRIVATE_KEY.search(content):
        return Suspicion(reason="contains a private key", certain=True)
    if _KUBECONFIG_KEY.search(content):
        return Suspicion(reason="contains the client key of a kubeconfig", certain=True)
    if _matches(path, SECRET_NAMES) and not _only_public(path, content):
        return Suspicion(reason="looks like a secret by its name", certain=True)
    if _matches(path, DOUBTFUL_NAMES):
        return Suspicion(reason="may contain secrets, by its name", certain=False)
    return None


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    path = path.lower()
    name = path.rpartition("/")[2]
    for pattern in patterns:
        if "/" in pattern:
            if path == pattern or path.endswith("/" + pattern):
                return True
        elif fnmatchcase(name, pattern):
            return True
    return False


def _only_public(path: str, content: bytes) -> bool:
    """Return whether a PEM file holds only certificates and public keys, as a CA file does."""
    labels = set(_LABEL.findall(content))
    return path.lower().endswith(".pem") and bool(labels) and labels <= _PUBLIC_LABELS


class FindingKind(str, enum.Enum):
    """Category of a problem with a file."""

    CREDENTIAL = "credential"
    TOO_LARGE = "too-large"
    TOTAL_TOO_LARGE = "total-too-large"
    LINK_LEAVES = "link-leaves"
    LINK_DANGLES = "link-dangles"
    SPECIAL = "special"
    UNREADABLE = "unreadable"
    NAME = "name"


class Severity(str, enum.Enum):
    """Consequence of a problem: the bundle is refused, or the user is warned."""

    REFUSE = "refuse"
    WARN = "warn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper limits of a bundle. A file allowed by name may be larger than `file_bytes`."""

    file_bytes: int = 100 * MIB
    total_bytes: int = 1024 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One file that must not, or perhaps should not, be sent. The message includes the fix."""

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
    """Return all findings for `paths` below `root`, in their order. `allow` holds shell patterns."""
    paths = tuple(paths)
    traveling = {above for path in paths for above in (path, *parents_of(path))}
    findings: list[Finding] = []
    sizes: dict[str, int] = {}
    for path in paths:
        finding = _check_one(root, path, traveling, allow, limits, sizes)
        if finding:
            findings.append(finding)
    total_bytes = sum(sizes.values())
    if total_bytes > limits.total_bytes:
        findings.append(_total_too_large(sizes, total_bytes, limits))
    return tuple(findings)


def refuse(findings: Iterable[Finding]) -> None:
    """Raise one BundleError that names all refused files. Warnings are ignored."""
    refused = [finding for finding in findings if finding.severity is Severity.REFUSE]
    if not refused:
        return
    lines = [f"  {shown(finding.path)}: {finding.message}" for finding in refused[:_LISTED]]
    if len(refused) > _LISTED:
        lines.append(f"  and {len(refused) - _LISTED} more")
    count = "1 file" if len(refused) == 1 else f"{len(refused)} files"
    raise BundleError(
        f"{count} must not be sent to nodes:\n" + "\n".join(lines),
        hint=f"add files that must stay here to {OWN_FILE} (gitignore syntax)",
    )


def _check_one(
    root: Path,
    path: str,
    traveling: set[str],
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
            return _check_link(root, path, traveling)
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
            f"{_mib(size_bytes)} is over the limit of {_mib(limits.file_bytes)} per file; add it to "
            f"{OWN_FILE} and read it from a volume, or allow it by name"
        )
        return _refusal(path, FindingKind.TOO_LARGE, message)
    return None


def _check_link(root: Path, path: str, traveling: set[str]) -> Finding | None:
    link = root / path
    real_root = os.path.realpath(root)
    reached = os.path.realpath(link)
    if reached != real_root and not reached.startswith(real_root.rstrip("/") + "/"):
        message = (
            f"the link leaves the root for {shown(str(link.readlink()))}; add it to {OWN_FILE}"
        )
        return _refusal(path, FindingKind.LINK_LEAVES, message)
    inside = os.path.relpath(reached, real_root)
    if inside != "." and inside not in traveling:
        target = shown(read_link(Path(real_root), path))
        message = f"the link's target {target} is not sent, so the link will be broken"
        return Finding(
            path=path, kind=FindingKind.LINK_DANGLES, severity=Severity.WARN, message=message
        )
    return None


def _secret(path: str, suspicion: Suspicion) -> Finding:
    if suspicion.certain:
        message = f"{suspicion.reason}; add it to {OWN_FILE}, or allow it by name"
        return _refusal(path, FindingKind.CREDENTIAL, message)
    message = f"{suspicion.reason}; it is sent unless {OWN_FILE} excludes it"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A checked project: its root, the files to send, and the warnings for the user."""

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
    """Return the bundle of the project at `root`. Raise BundleError if some files must not be sent."""
    root = check_root(root)
    paths = select_files(root)
    findings = find_problems(root, paths, allow=allow, limits=limits)
    refuse(findings)
    return Bundle(root=root, manifest=scan(root, paths, cache=cache), warnings=findings)
