"""Settings of nodes: the pod, its image, and the node sizes for a framework.

Turns settings into records of `windlass.spec`, and reads a patch from its file. A pod without an image gets
the public PyTorch image of this machine's torch version. Only frameworks that count resources get sizes.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from windlass import names
from windlass.client.terminal import print_notice
from windlass.errors import SpecError
from windlass.frameworks import python_ranks
from windlass.frameworks.framework import Framework
from windlass.settings import Settings
from windlass.settings.table import find_setting
from windlass.spec.node_resources import NodeSize, NodeSizes, make_size
from windlass.spec.pod_spec import PodSpec, read_toleration
from windlass.spec.storage import read_secret, read_volume

_REPOSITORY = "pytorch/pytorch"
# First version of torch that is published with each build of CUDA and cuDNN, newest first.
_BUILDS = (
    ((2, 11), "cuda13.0-cudnn9"),
    ((2, 7), "cuda12.8-cudnn9"),
    ((2, 6), "cuda12.6-cudnn9"),
    ((2, 4), "cuda12.4-cudnn9"),
    ((2, 1), "cuda12.1-cudnn8"),
)
_RELEASE = re.compile(r"([0-9]+)\.([0-9]+)\.([0-9]+)(\+.*)?")
logger = logging.getLogger(__name__)

_MESH_NAME = re.compile(r"[a-z][a-z0-9]{0,62}")
_PATCH_HINT = "a patch looks like a pod template: spec: {hostNetwork: true}"
_AS_THEY_ARE = (
    *("image", "namespace", "cpus", "memory", "gpus", "gpu_type", "gpu_label", "gpu_resource"),
    *("requests", "ephemeral_storage", "shm", "node_selector", "spread", "pack", "priority_class"),
    *("service_account", "pull_secrets", "annotations", "labels", "queue", "ttl_s", "in_image"),
    *("run_as", "runtime"),
)


def choose_image() -> str:
    """Return the default image, and print it once. Empty if torch here is not a public release."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""
    image = find_torch_image(version)
    if image:
        _print_image(image, version)
    return image


def find_torch_image(version: str) -> str:
    """Return the public image of a version of torch. Empty if the version has none."""
    release = _RELEASE.fullmatch(version)
    if release is None:
        return ""
    number = (int(release[1]), int(release[2]))
    builds = [build for since, build in _BUILDS if since <= number]
    return (
        f"{_REPOSITORY}:{release[1]}.{release[2]}.{release[3]}-{builds[0]}-runtime"
        if builds
        else ""
    )


@functools.cache
def _print_image(image: str, version: str) -> None:
    print_notice(
        f"using image {image}, because torch {version} is installed here; "
        "`windlass config set image NAME:TAG` sets another"
    )


def forget_own_python(settings: Settings) -> Settings:
    """Return the settings without an interpreter of this machine, because images do not have it.

    Only a path from the environment that exists here is removed. Names without a path, and values from flags
    or files, are meant for the pods.
    """
    python = settings.python
    is_exported = settings.origin("python").startswith("environment")
    if not (is_exported and "/" in python and Path(python).expanduser().exists()):
        return settings
    logger.warning(
        "%s=%s is an interpreter of this machine, so pods use python3 of their image; --python sets another",
        find_setting("python").variable,
        python,
    )
    return replace(settings, python="")


def fit_to_pods(settings: Settings, framework: Framework, job_id: str) -> Settings:
    """Return the settings for pods: without this machine's interpreter, and with a name for a mesh."""
    return _name_mesh(forget_own_python(settings), framework, job_id)


def _name_mesh(settings: Settings, framework: Framework, job_id: str) -> Settings:
    """Return the settings with a mesh name, if the framework makes the job's pods a mesh."""
    is_mesh = framework.cluster is not None and framework.cluster.is_mesh
    if settings.mesh_name or not is_mesh:
        return settings
    return replace(settings, mesh_name=job_id.replace("-", ""))


def make_pod(settings: Settings) -> PodSpec:
    """Return the checked settings of a pod."""
    plain: dict[str, Any] = {name: settings.value(name) for name in _AS_THEY_ARE}
    if not settings.image and not settings.in_image:  # a public image lacks the user's code
        plain["image"] = choose_image()
    if settings.pretend_gpus:
        plain["gpus"] = 0
    allow = settings.allow_host_path
    if settings.mesh_name:
        plain["labels"] = {**make_mesh_labels(settings.mesh_name), **plain["labels"]}
    return PodSpec(
        **plain,
        open_ports=(names.MONARCH_PORT,) if settings.open_mesh else (),
        tolerations=tuple(read_toleration(text) for text in settings.tolerations),
        secrets=tuple(read_secret(text) for text in settings.secrets),
        volumes=tuple(read_volume(text, allow_host_path=allow) for text in settings.volumes),
        patch=None if settings.patch is None else _read_patch(settings.patch),
    )


def make_mesh_labels(name: str) -> dict[str, str]:
    """Return the labels by which Monarch's clients find the hosts of a mesh."""
    if not _MESH_NAME.fullmatch(name):
        raise SpecError(
            f"invalid Monarch mesh name {name!r:.80}",
            hint="use at most 63 lowercase letters and digits, starting with a letter, such as ddpmesh",
        )
    return {names.LABEL_APP: "monarch-worker", names.LABEL_MESH: name}


def _read_patch(given: str | Mapping[str, Any]) -> Mapping[str, Any]:
    patch = given if isinstance(given, Mapping) else _parse(given)
    if not isinstance(patch, Mapping) or not patch:
        raise SpecError("the patch must be a table", hint=_PATCH_HINT)
    if unknown := [key for key in patch if key not in ("metadata", "spec")]:
        raise SpecError(f"the patch has {unknown[0]!r} at its top level", hint=_PATCH_HINT)
    try:
        json.dumps(patch)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"the patch has a value that JSON does not support: {error}",
            hint="put values such as dates in quotes",
        ) from error
    return patch


def _parse(text: str) -> Any:
    import yaml

    is_file = ":" not in text and "{" not in text
    try:
        return yaml.safe_load(Path(text).read_text(encoding="utf-8") if is_file else text)
    except OSError as error:
        raise SpecError(
            f"cannot read the patch {text}: {error.strerror}",
            hint=f"pass a YAML file or YAML text; {_PATCH_HINT}",
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = text if is_file else "the patch"
        raise SpecError(f"{where} is not valid YAML: {error}", hint=_PATCH_HINT) from error


def make_sizes(
    framework: Framework,
    settings: Settings,
    others: Mapping[str, Any] | None = None,
    *,
    are_alike: bool = False,
) -> NodeSizes | None:
    """Return the sizes of nodes for a framework, or None if it counts no resources.

    Node 0 has the size in the settings. The other nodes have the size in `others`, if it is given. With
    `are_alike`, all nodes are pods of one size.
    """
    if framework.cluster is None:
        return None
    given = {"cpus": settings.cpus, "gpus": settings.gpus, "memory": settings.memory}
    first = make_size(given, "--")
    other = make_size(others, "worker_node_options:") if others else first
    if are_alike:
        _check_pods(first, other)
    return NodeSizes(
        first=first,
        others=other,
        pretends_gpus=settings.pretend_gpus,
        version=python_ranks.find_version(framework.cluster.library),
    )


def _check_pods(first: NodeSize, others: NodeSize) -> None:
    """Reject workers that are larger than the head, because all pods of a job have the same size."""
    for name in ("cpus", "gpus", "memory_bytes"):
        has, wants = getattr(first, name), getattr(others, name)
        if wants > has and (has or name == "gpus"):
            word = name.removesuffix("_bytes")
            raise SpecError(
                f"workers need more {word} than the head, but all pods of a compute have the same size",
                hint=f"set Compute({word}=...) to the value in worker_node_options",
            )
