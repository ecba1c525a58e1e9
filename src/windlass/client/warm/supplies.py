"""What nodes are given besides code: an image, volumes and secrets, as settings, variables and hidden values.

`gather` only decides; `ensure_volumes` makes claims. Values of secrets are in `hidden` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windlass.client.warm.image import Image
from windlass.client.warm.secret import Secret, resolve_secrets
from windlass.client.warm.volume import Volume
from windlass.client.warm.where import say
from windlass.errors import SpecError
from windlass.settings import Settings
from windlass.spec import storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Supplies:
    """Everything of it, in the forms that settings and engines take."""

    image: Image
    volumes: tuple[Volume, ...]
    flags: Mapping[str, Any]  # settings
    env: Mapping[str, str]  # variables that may be seen
    hidden: Mapping[str, str] = field(repr=False)


def gather(
    *,
    image: str | Image | None,
    volumes: Iterable[str | Volume] | None,
    secrets: Iterable[str | Secret] | None,
    has_pods: bool,
    home: Path,
    environ: Mapping[str, str],
) -> Supplies:
    """What was asked for; folders of volumes are made where nodes are of this machine."""
    read = Image.read(image or "")
    listed = _listed("volumes", volumes)
    own = tuple(volume for volume in listed if isinstance(volume, Volume))
    texts = [volume for volume in listed if isinstance(volume, str)]
    resolved = resolve_secrets(_listed("secrets", secrets), environ=environ, has_pods=has_pods)
    flags: dict[str, Any] = {"image": read.ref or None}
    if has_pods:
        flags["volumes"] = [*(f"{v.name}:{v.mount_path}" for v in own), *texts] or None
        flags["secrets"] = [_spell(record) for record in resolved.records] or None
        places = {volume.variable(): volume.mount_path for volume in own}
    else:
        places = {volume.variable(): str(volume.local_folder(home)) for volume in own}
    return Supplies(
        image=read,
        volumes=own,
        flags=flags,
        env={**read.variables, **places},
        hidden=resolved.hidden,
    )


def _listed(keyword: str, given: Any) -> list[Any]:
    if given is None:
        return []
    if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable):
        raise SpecError(f"{keyword} must be a list, found {given!r:.60}", hint=f"{keyword}=[...]")
    return list(given)


def _spell(record: storage.Secret) -> str:
    """A reference to a Secret as `--secret` takes it."""
    if isinstance(record, storage.SecretVariable):
        return f"{record.variable}={record.secret}:{record.key}"
    if isinstance(record, storage.SecretFiles):
        return f"{record.secret}:{record.path}"
    return record.secret


def ensure_volumes(supplies: Supplies, settings: Settings, num_nodes: int) -> None:
    """Make the claims that are missing, and say what was made."""
    if not supplies.volumes:
        return
    from windlass.kube.api import connect

    api = connect(context=settings.context, namespace=settings.namespace)
    for volume in supplies.volumes:
        for line in volume.ensure(api, num_nodes):
            say(line)
