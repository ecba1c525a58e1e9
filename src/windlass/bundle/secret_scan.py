"""What looks like a secret: by its name, and for small files by what they begin or hold.

Tables and two small readers. Whether a suspicion refuses the bundle is for `check` to say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

SNIFFED_BYTES = 64 << 10

# Matched against the lower-cased name, or from the right against the path where there is a slash.
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
# At the start of a line: a program that only speaks of the header is no key.
_PRIVATE_KEY = re.compile(
    rb"""^-----BEGIN\ (?:[A-Z0-9]+\ )*PRIVATE\ KEY(?:\ BLOCK)?-----\s*$
       | "private_key"\s*:\s*"-----BEGIN\ """,
    re.MULTILINE | re.VERBOSE,
)
_KUBECONFIG_KEY = re.compile(rb"^\s*client-key-data:\s*[\"']?[A-Za-z0-9+/]{40}", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """Why a file looks like a secret; `certain` enough to refuse it, or only to speak of it."""

    reason: str
    certain: bool


def suspect(file: Path, path: str, size_bytes: int) -> Suspicion | None:
    """Whether `file`, known in the bundle as `path`, looks like a secret."""
    if _matches(path, HARMLESS_NAMES):
        return None
    content = b""
    if size_bytes <= SNIFFED_BYTES:
        with file.open("rb") as opened:
            content = opened.read(SNIFFED_BYTES)
    if _PRIVATE_KEY.search(content):
        return Suspicion(reason="holds a private key", certain=True)
    if _KUBECONFIG_KEY.search(content):
        return Suspicion(reason="holds the client key of a kubeconfig", certain=True)
    if _matches(path, SECRET_NAMES) and not _only_public(path, content):
        return Suspicion(reason="looks like a secret by its name", certain=True)
    if _matches(path, DOUBTFUL_NAMES):
        return Suspicion(reason="may hold secrets, by its name", certain=False)
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
    """Whether a PEM file holds certificates and public keys alone, as a CA file does."""
    labels = set(_LABEL.findall(content))
    return path.lower().endswith(".pem") and bool(labels) and labels <= _PUBLIC_LABELS
