"""What a cluster must serve before an engine can use it: kinds that an operator brings, by API version."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from windlass.errors import EngineMissing
from windlass.kube.api import Api
from windlass.kube.api_errors import NotFound
from windlass.kube.kinds import ObjectKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A kind of one API version, and what brings it into a cluster: `Kubeflow Trainer 2`."""

    kind: ObjectKind
    product: str


def check_needs(api: Api, needs: Iterable[Need]) -> None:
    """Raise `EngineMissing` for the first kind that the cluster does not serve in that version."""
    served: dict[str, set[str]] = {}
    for need in needs:
        version = need.kind.api_version
        if version not in served:
            served[version] = _list_served(api, version)
        if need.kind.plural not in served[version]:
            raise _make_missing(api, need)


def _list_served(api: Api, api_version: str) -> set[str]:
    root = "apis" if "/" in api_version else "api"
    try:
        served = api.request("GET", f"/{root}/{api_version}")
    except NotFound:
        return set()
    return {str(resource.get("name")) for resource in served.get("resources") or ()}


def _make_missing(api: Api, need: Need) -> EngineMissing:
    kind = need.kind
    try:
        versions = api.request("GET", f"/apis/{kind.group}").get("versions") or ()
    except NotFound:
        versions = ()
    there = ", ".join(str(version.get("groupVersion")) for version in versions)
    return EngineMissing(
        f"this cluster does not serve {kind.name} ({kind.api_version})"
        f"{f'; it has {there}' if there else ''}",
        hint=f"install {need.product}, or use `--engine kubernetes`; `windlass engines` shows what is there",
    )
