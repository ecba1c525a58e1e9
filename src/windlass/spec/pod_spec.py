"""PodSpec: the pods of a job, with their image, resources, mounts and placement.

Tolerations, node labels and the spread of pods have short forms for common cases. `--patch` covers the rest.
This module performs no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from windlass import names
from windlass.errors import SpecError
from windlass.spec.node_resources import check_bytes, check_cpus, read_quantity
from windlass.spec.storage import Secret, Volume

SPREADS = ("soft", "hard", "none")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY = rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_NAME}"
_VALUE = rf"({_NAME})?"
GPU_RESOURCE = "nvidia.com/gpu"
GPU_LABEL = "nvidia.com/gpu.product"
DAY_S = 86400.0
_DNS_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
_OURS = ("windlass.dev/", "batch.kubernetes.io/", "app.kubernetes.io/managed-by")


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """A taint that the pods tolerate. An empty field matches any value, effect or taint."""

    key: str = ""
    value: str = ""
    effect: str = ""


def read_toleration(text: str) -> Toleration:
    """Parse a toleration: KEY or KEY=VALUE, with an optional :EFFECT, or * for every taint."""
    name, _, effect = text.partition(":")
    key, _, value = name.partition("=")
    if key == "*" and not value and (not effect or effect in EFFECTS):
        return Toleration(effect=effect)
    if (
        not re.fullmatch(_KEY, key)
        or not re.fullmatch(_VALUE, value)
        or (effect and effect not in EFFECTS)
    ):
        raise SpecError(
            f"invalid --toleration {text!r}",
            hint=f"use KEY, KEY=VALUE or KEY=VALUE:EFFECT; effects are {', '.join(EFFECTS)}",
        )
    return Toleration(key=key, value=value, effect=effect)


def check_label_key(flag: str, key: str) -> None:
    """Raise SpecError if a text is not a valid key of a label or annotation."""
    if not re.fullmatch(_KEY, key):
        raise SpecError(
            f"{flag}: invalid key {key!r:.80}",
            hint="use at most 63 letters, digits, - _ and ., optionally after a domain and /",
        )


def check_labels(flag: str, labels: Mapping[str, str], *, choices: bool = False) -> None:
    """Raise SpecError if a label is invalid. With `choices`, a value may list several, as in `A|B`."""
    for key, value in labels.items():
        check_label_key(flag, key)
        for part in value.split("|") if choices else (value,):
            if not re.fullmatch(_VALUE, part):
                raise SpecError(
                    f"{flag}: invalid label value {value!r:.80}",
                    hint="use at most 63 letters, digits, - _ and ., with a letter or digit at both ends",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSize:
    """Resources of a group's pods. An empty resource is not limited."""

    cpus: str = ""
    memory: str = ""
    gpus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSpec:
    """Spec of every pod of a job. Quantities are strings, as in Kubernetes. Empty means no request."""

    image: str
    namespace: str = ""  # empty for the context's namespace
    cpus: str = ""
    memory: str = ""
    gpus: int = 0
    gpu_type: str = ""  # value of the nodes' label `gpu_label`, or A|B for either
    gpu_label: str = GPU_LABEL
    gpu_resource: str = GPU_RESOURCE
    requests: Mapping[str, str] = field(default_factory=dict)  # if lower than the limits
    ephemeral_storage: str = ""
    shm: str = ""  # empty for half of the memory, or no limit if memory has none
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    spread: str = "soft"  # over hosts
    # a node label that must be equal for all pods of the job, such as a zone or rack
    pack: str = ""
    priority_class: str = ""
    service_account: str = ""
    pull_secrets: tuple[str, ...] = ()
    secrets: tuple[Secret, ...] = ()
    volumes: tuple[Volume, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    queue: str = ""
    runtime: str = ""  # template of a TrainJob, or empty for the engine's choice
    ttl_s: float | None = DAY_S  # None to keep the ended job until a user removes it
    in_image: bool = False
    run_as: int | None = 1000  # None to let the cluster or the image decide
    patch: Mapping[str, Any] | None = None
    workers: PodSize | None = None  # size of all pods but the first, or None if all are equal
    open_ports: tuple[int, ...] = ()  # ports that all pods of the namespace may reach

    def __post_init__(self) -> None:
        _check_image(self.image)
        _check_names(self)
        _check_resources(self)
        _check_placement(self)
        _check_mounts(self)
        self.of_workers()

    def of_workers(self) -> PodSpec:
        """Return the spec of every pod but the first."""
        size = self.workers
        if size is None:
            return self
        return replace(
            self,
            cpus=size.cpus,
            memory=size.memory,
            gpus=size.gpus,
            gpu_type=self.gpu_type if size.gpus else "",
            requests={},  # they were checked against the limits of the first pod
            workers=None,
        )


def _check_image(image: str) -> None:
    if not image:
        raise SpecError(
            "no image given: pods need an image with Python and torch",
            hint="use --image NAME:TAG, WINDLASS_IMAGE, or `windlass config set image NAME:TAG`, which "
            "writes windlass.toml",
        )
    if image != image.strip() or any(char.isspace() for char in image):
        raise SpecError(f"--image {image!r:.80} contains a space", hint="use NAME:TAG")


def _check_names(pod: PodSpec) -> None:
    if pod.namespace and not re.fullmatch(names.DNS_LABEL, pod.namespace):
        raise SpecError(
            f"invalid namespace {pod.namespace!r:.80}",
            hint="use at most 63 lowercase letters, digits and hyphens",
        )
    named = {
        "--priority-class": (pod.priority_class,),
        "--service-account": (pod.service_account,),
        "--pull-secret": pod.pull_secrets,
        "--queue": (pod.queue,),
        "--runtime": (pod.runtime,),
    }
    for flag, values in named.items():
        for value in values:
            if value and not re.fullmatch(_DNS_NAME, value):
                raise SpecError(
                    f"{flag}: invalid object name {value!r:.80}",
                    hint="use lowercase letters, digits, hyphens and dots",
                )
    if pod.run_as is not None and not 0 <= pod.run_as < 1 << 31:
        raise SpecError(
            f"--run-as must be a user ID, not {pod.run_as}",
            hint="use an ID such as 1000, or none for the image's user",
        )
    if pod.ttl_s is not None and not pod.ttl_s >= 0:
        raise SpecError(
            f"--ttl must be at least 0, not {pod.ttl_s}",
            hint="use --ttl none to keep the job indefinitely",
        )


def _check_resources(pod: PodSpec) -> None:
    check_cpus("--cpus", pod.cpus)
    check_bytes("--memory", pod.memory)
    check_bytes("--ephemeral-storage", pod.ephemeral_storage)
    check_bytes("--shm", pod.shm)
    if pod.gpus < 0:
        raise SpecError(f"--gpus must be at least 0, not {pod.gpus}")
    if pod.gpu_type and not pod.gpus:
        raise SpecError(f"--gpu-type {pod.gpu_type} requires GPUs", hint="add --gpus N")
    check_label_key("--gpu-resource", pod.gpu_resource)
    for name, value in pod.requests.items():
        _check_request(pod, name, value)
    if pod.shm and pod.memory and read_quantity(pod.shm) > read_quantity(pod.memory):
        raise SpecError(
            f"--shm {pod.shm} exceeds --memory {pod.memory}, which includes it",
            hint="raise --memory or lower --shm",
        )


def _check_request(pod: PodSpec, name: str, value: str) -> None:
    known = {"cpus": pod.cpus, "memory": pod.memory, "ephemeral_storage": pod.ephemeral_storage}
    if name not in known:
        raise SpecError(
            f"unknown resource {name!r:.60}",
            hint=f"--request accepts {', '.join(known)}",
        )
    check = check_cpus if name == "cpus" else check_bytes
    check(f"--request {name}", value)
    limit = known[name]
    if limit and read_quantity(value) > read_quantity(limit):
        raise SpecError(
            f"--request {name}={value} exceeds the limit {limit}",
            hint=f"raise --{name.replace('_', '-')} or lower the request",
        )


def _check_placement(pod: PodSpec) -> None:
    check_labels("--node-selector", pod.node_selector, choices=True)
    check_label_key("--gpu-label", pod.gpu_label)
    check_labels("--gpu-type", {pod.gpu_label: pod.gpu_type}, choices=True)
    check_labels("--label", pod.labels)
    for key in pod.annotations:
        check_label_key("--annotation", key)
    for flag, table in (("--label", pod.labels), ("--annotation", pod.annotations)):
        for key in table:
            if key.startswith(_OURS):
                raise SpecError(
                    f"{flag} {key} is set by Windlass itself", hint="choose another key"
                )
    if pod.spread not in SPREADS:
        raise SpecError(
            f"--spread must be one of {', '.join(SPREADS)}, not {pod.spread!r}",
            hint="soft prefers different hosts, hard requires them, none ignores hosts",
        )
    if pod.pack:
        check_label_key("--pack", pod.pack)


def _check_mounts(pod: PodSpec) -> None:
    paths = [path for mount in (*pod.volumes, *pod.secrets) if (path := getattr(mount, "path", ""))]
    for path in paths:
        if paths.count(path) > 1:
            raise SpecError(f"{path} is mounted twice", hint="use a different path for each volume")
