"""Volume: named storage that outlives the computes that use it.

On Kubernetes it is a PersistentVolumeClaim that Windlass creates if it is missing and that no job owns.
Locally, it is the folder `volumes/NAME` in Windlass's home folder. Ranks get its path from
`windlass.distributed.volume_path(name)` in both cases.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass import names
from windlass.distributed import volume_variable
from windlass.errors import EngineError, SpecError
from windlass.near_names import did_you_mean
from windlass.spec.node_resources import check_bytes, read_quantity
from windlass.spec.storage import ACCESS_MODES, Claim, read_volume
from windlass.trusted import make_own

if TYPE_CHECKING:
    from windlass.kube.client.api import Api

_HINT = (
    'use Volume(name="shared-data", size="1Ti", mount_path="/data", access_mode="ReadWriteMany")'
)
_ONE_POD = "ReadWriteOncePod"
_ALONE = ("ReadWriteOnce", _ONE_POD)


@dataclass(frozen=True, slots=True)
class Volume:
    """Storage that outlives the computes that use it.

    name: name of the claim, or of the local folder.
    size: size to create it with, such as 1Ti. Without a size it must exist.
    mount_path: folder where ranks find it on a cluster.
    access_mode: ReadWriteMany (RWX), ReadWriteOnce (RWO), ReadOnlyMany (ROX) or ReadWriteOncePod.
    storage_class: storage class to create it with (default: the cluster's default).
    """

    name: str
    size: str = ""
    mount_path: str = ""
    access_mode: str = "ReadWriteMany"
    storage_class: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(names.DNS_LABEL, self.name):
            raise SpecError(
                f"invalid volume name {self.name!r:.80}",
                hint="use at most 63 lowercase letters, digits and hyphens",
            )
        if not isinstance(self.size, str):
            raise SpecError(
                f"the size of volume {self.name} needs a unit", hint=f'use size="{self.size}Gi"'
            )
        check_bytes(f"the size of volume {self.name}", self.size)
        object.__setattr__(self, "access_mode", _read_mode(self.name, self.access_mode))
        self._check_class()
        self.as_claim()

    def _check_class(self) -> None:
        is_name = isinstance(self.storage_class, str)
        if not is_name or not re.fullmatch(
            r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?", self.storage_class
        ):
            raise SpecError(
                f"invalid storage class name {self.storage_class!r:.80}",
                hint="run `kubectl get storageclass` to list them, or omit it to use the cluster's default",
            )

    def as_claim(self) -> Claim:
        """Return the claim that pods mount."""
        if not self.mount_path or not isinstance(self.mount_path, str):
            raise SpecError(f"volume {self.name} needs a mount_path", hint=_HINT)
        try:
            # use a fixed name, because some volume names are keywords of `--volume`
            mount = read_volume(f"claim:{self.mount_path}")
        except SpecError as error:
            why = error.message.rpartition(": ")[2]
            raise SpecError(f"mount_path of volume {self.name}: {why}", hint=_HINT) from None
        return Claim(claim=self.name, path=mount.path)

    def variable(self) -> str:
        """Return the variable that holds its path for ranks."""
        return volume_variable(self.name)

    def check_nodes(self, num_nodes: int, modes: tuple[str, ...] = ()) -> None:
        """Refuse an access mode that fewer than `num_nodes` can mount.

        `modes` are those of an existing claim.
        """
        allowed = modes or (self.access_mode,)
        if num_nodes < 2 or any(mode not in _ALONE for mode in allowed):
            return
        users = "one pod" if _ONE_POD in allowed else "the pods of one Kubernetes node"
        state = "exists as" if modes else "is"
        raise SpecError(
            f"volume {self.name} {state} {allowed[0]}: only {users} can mount it at a time, "
            f"but the compute has {num_nodes} nodes",
            hint='access_mode="ReadWriteMany" with a storage class for it (NFS, CephFS, JuiceFS, Lustre)'
            + (f", under another name: {self.name} exists" if modes else "")
            + "; or workers=1",
        )

    def make_claim_manifest(self) -> dict[str, Any]:
        """Return the claim's manifest. It has no owner, so it outlives jobs and computes."""
        spec: dict[str, Any] = {
            "accessModes": [self.access_mode],
            "resources": {"requests": {"storage": self.size}},
        }
        if self.storage_class:
            spec["storageClassName"] = self.storage_class
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": self.name, "labels": {names.LABEL_MANAGED_BY: "windlass"}},
            "spec": spec,
        }

    def ensure(self, api: Api, num_nodes: int) -> list[str]:
        """Create the claim if it is missing.

        Returns messages for the user: that it was created, or how an existing one differs.
        """
        from windlass.kube.client.api_errors import Conflict
        from windlass.kube.objects.kinds import PVCS

        claim = self._find(api)
        if claim is None:
            self.check_nodes(num_nodes)
            if not self.size:
                raise SpecError(
                    f"claim {self.name} not found in namespace {api.namespace}, and no size is set",
                    hint=f'use Volume(name="{self.name}", size="100Gi", ...)',
                )
            try:
                api.create(PVCS, self.make_claim_manifest())
            except Conflict:  # another client created it first
                claim = self._find(api)
        if claim is None:
            return [f"created the claim {self.name}, {self.size}, in namespace {api.namespace}"]
        return self._compare(claim, api.namespace, num_nodes)

    def _find(self, api: Api) -> dict[str, Any] | None:
        """Return the claim, or None. Lists claims, because the documented Role does not allow `get`."""
        from windlass.kube.objects.kinds import PVCS

        return next(iter(api.list(PVCS, fields=f"metadata.name={self.name}")), None)

    def _compare(self, claim: dict[str, Any], namespace: str, num_nodes: int) -> list[str]:
        """Describe how an existing claim differs from this volume."""
        if claim["metadata"].get("deletionTimestamp"):
            raise EngineError(
                f"the claim {self.name} in namespace {namespace} is being deleted",
                hint="wait until the last pod that uses it has ended, or use another name",
            )
        spec = claim["spec"]
        modes = tuple(spec.get("accessModes") or ())
        self.check_nodes(num_nodes, modes)
        size = str(((spec.get("resources") or {}).get("requests") or {}).get("storage", ""))
        kept = {
            "size": (size, self.size, not self.size or not size or _is_equal(size, self.size)),
            "access mode": (", ".join(modes), self.access_mode, self.access_mode in modes),
            "storage class": (
                spec.get("storageClassName") or "none",
                self.storage_class,
                self.storage_class in ("", spec.get("storageClassName")),
            ),
        }
        return [
            f"the claim {self.name} already exists with {what} {there}, not {requested}; it is used as it is"
            for what, (there, requested, is_same) in kept.items()
            if not is_same
        ]

    def local_folder(self, home: Path) -> Path:
        """Return the volume's folder on this machine. Create it if it is missing."""
        folder = home / "volumes" / self.name
        try:
            make_own(folder, below=home)
        except OSError as error:
            raise EngineError(
                f"cannot create the folder of volume {self.name}: {error.filename}: {error.strerror}",
                hint=f"make it writable, or set {names.HOME} to another folder",
            ) from error
        return folder


def _is_equal(a: str, b: str) -> bool:
    return read_quantity(a) == read_quantity(b)


def _read_mode(name: str, given: object) -> str:
    known = {short.lower(): mode for short, mode in ACCESS_MODES.items()}
    known |= {mode.lower(): mode for mode in ACCESS_MODES.values()}
    if isinstance(given, str) and given.lower() in known:
        return known[given.lower()]
    every = ", ".join(f"{mode} ({short})" for short, mode in ACCESS_MODES.items())
    raise SpecError(
        f"invalid access mode {given!r:.60} for volume {name}",
        hint=did_you_mean(str(given).lower(), known, f"use one of {every}", show=known.__getitem__),
    )
