"""Volumes and secrets of a pod: their text forms, and the records that are parsed from them.

    CLAIM:/data[:ro]                        an existing claim
    new:10Gi:/data[:RWX][:CLASS]            a claim that is created and deleted with the job
    emptydir[:5Gi]:/scratch                 a folder that exists as long as the pod
    hostpath:/on/the/host:/data[:ro]        a folder of the machine, refused unless allowed

    SECRET                                  every key of a Secret as a variable
    VAR=SECRET:KEY                          one key as the variable VAR
    SECRET:/folder                          every key as a file in a folder

Records never hold a secret's value, only a reference to it. This module performs no I/O.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import ClassVar

from windlass import names
from windlass.errors import SpecError
from windlass.spec.node_resources import check_bytes

ACCESS_MODES = {
    "RWO": "ReadWriteOnce",
    "RWX": "ReadWriteMany",
    "ROX": "ReadOnlyMany",
    "RWOP": "ReadWriteOncePod",
}
# Patterns are compiled on first use, because every agent imports this module, but few agents run in pods.
_OBJECT_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
_KEY_FORM = r"[-._A-Za-z0-9]{1,253}"
_VOLUME_HINT = "use CLAIM:/data, new:10Gi:/data[:RWX][:CLASS] or emptydir[:5Gi]:/scratch"
_USE_HINT = "use SECRET, VAR=SECRET:KEY or SECRET:/folder"
_RESERVED_PATHS = ("/", "/windlass", "/dev", "/dev/shm", "/proc", "/sys", "/etc")  # noqa: S108


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """An existing PersistentVolumeClaim."""

    kind: ClassVar[str] = "claim"
    claim: str
    path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NewClaim:
    """A PersistentVolumeClaim that is created with the job.

    An empty `access` allows many writers if the job has several nodes.
    """

    kind: ClassVar[str] = "new"
    size: str
    path: str
    access: str = ""
    storage_class: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyDir:
    """Folder that exists as long as its pod."""

    kind: ClassVar[str] = "emptydir"
    path: str
    size: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPath:
    """Folder on the machine that runs the pod."""

    kind: ClassVar[str] = "hostpath"
    source: str
    path: str
    read_only: bool = False


Volume = Claim | NewClaim | EmptyDir | HostPath


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretVariable:
    """One key of a Secret as a variable."""

    kind: ClassVar[str] = "variable"
    secret: str
    key: str
    variable: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretVariables:
    """Every key of a Secret as a variable of that name."""

    kind: ClassVar[str] = "variables"
    secret: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretFiles:
    """Every key of a Secret as a file in a folder."""

    kind: ClassVar[str] = "files"
    secret: str
    path: str


Secret = SecretVariable | SecretVariables | SecretFiles


def read_volume(text: str, *, allow_host_path: bool = False) -> Volume:
    """Return the volume that a text describes. Raise SpecError if it is malformed."""
    head, *rest = text.split(":")
    lower = head.lower()
    if lower == "new":
        return _read_new(text, rest)
    if lower == "emptydir":
        return _read_emptydir(text, rest)
    if lower == "hostpath" or head.startswith("/"):
        return _read_host_path(
            text, rest if lower == "hostpath" else [head, *rest], allow_host_path
        )
    if not re.fullmatch(_OBJECT_NAME, head):
        raise _no_volume(text, f"{head!r} is not the name of a claim")
    path, read_only = _read_mount(text, rest)
    return Claim(claim=head, path=path, read_only=read_only)


def _read_new(text: str, rest: list[str]) -> NewClaim:
    if len(rest) < 2:
        raise _no_volume(text, "it needs a size and a path")
    size, path, *more = rest
    check_bytes(f"the size in --volume {text}", size)
    access = more.pop(0).upper() if more and more[0].upper() in ACCESS_MODES else ""
    if len(more) > 1 or (more and not re.fullmatch(_OBJECT_NAME, more[0])):
        raise _no_volume(text, f"{':'.join(more)!r} is neither an access mode nor a storage class")
    storage_class = more[0] if more else ""
    return NewClaim(
        size=size, path=_check_path(text, path), access=access, storage_class=storage_class
    )


def _read_emptydir(text: str, rest: list[str]) -> EmptyDir:
    if not 1 <= len(rest) <= 2:
        raise _no_volume(text, "it needs a path, and may have a size before it")
    size = rest[0] if len(rest) == 2 else ""
    check_bytes(f"the size in --volume {text}", size)
    return EmptyDir(path=_check_path(text, rest[-1]), size=size)


def _read_host_path(text: str, rest: list[str], allowed: bool) -> HostPath:
    if not allowed:
        raise SpecError(
            f"--volume {text} is a folder of the machine, which can expose more than the job's data",
            hint="use a claim, or add --allow-host-path if the cluster permits it",
        )
    if len(rest) < 2 or not rest[0].startswith("/"):
        raise _no_volume(text, "it needs the folder's path on the host and a path in the pod")
    path, read_only = _read_mount(text, rest[1:])
    return HostPath(source=rest[0], path=path, read_only=read_only)


def _read_mount(text: str, rest: list[str]) -> tuple[str, bool]:
    if not rest:
        raise _no_volume(text, "it needs a path in the pod")
    path, *more = rest
    if len(more) > 1 or (more and more[0] not in ("ro", "rw")):
        raise _no_volume(text, f"{':'.join(more)!r} is neither ro nor rw")
    return _check_path(text, path), more == ["ro"]


def _check_path(text: str, path: str) -> str:
    if not path.startswith("/") or ":" in path or "\0" in path:
        raise _no_volume(text, f"{path!r} is not an absolute path")
    path = posixpath.normpath("/" + path.lstrip("/"))
    if path in _RESERVED_PATHS or path.startswith("/windlass/"):
        raise _no_volume(text, f"{path} is reserved")
    return path


def _no_volume(text: str, why: str) -> SpecError:
    return SpecError(f"--volume {text}: {why}", hint=_VOLUME_HINT)


def read_secret(text: str) -> Secret:
    """Return the Secret record that a text describes. Raise SpecError if the text is malformed."""
    variable, equals, reference = text.partition("=")
    if equals:
        secret, _, key = reference.partition(":")
        if not re.fullmatch(_OBJECT_NAME, secret):
            # The error does not repeat the text, because it may contain a secret's value by mistake.
            raise _no_secret(text, "the text after = does not name a Secret")
        if not re.fullmatch(_VARIABLE, variable) or variable in names.SET_PER_RANK:
            raise _no_secret(text, f"{variable!r} cannot be set as a variable")
        if not re.fullmatch(_KEY_FORM, key or variable):
            raise _no_secret(text, "the text after : is not a key of a Secret")
        return SecretVariable(secret=secret, key=key or variable, variable=variable)
    secret, colon, path = text.partition(":")
    if not re.fullmatch(_OBJECT_NAME, secret):
        raise _no_secret(text, f"{secret!r} is not the name of a Secret")
    if not colon:
        return SecretVariables(secret=secret)
    if not path.startswith("/"):
        raise _no_secret(text, f"{path!r} is not an absolute path")
    path = posixpath.normpath("/" + path.lstrip("/"))
    if path in _RESERVED_PATHS or path.startswith("/windlass/"):
        raise _no_secret(text, f"{path} is reserved")
    return SecretFiles(secret=secret, path=path)


def _no_secret(text: str, why: str) -> SpecError:
    return SpecError(f"--secret {text.partition('=')[0]}: {why}", hint=_USE_HINT)
