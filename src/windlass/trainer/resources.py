"""Resources as the SDKs write them, as settings: {"cpu": "1", "memory": "2Gi", "gpu": "1"}. Pure.

What a job asks for is also what it is limited to. A gpu is `nvidia.com/gpu`, mig-1g.5gb a slice of one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from windlass.errors import SpecError
from windlass.near_names import did_you_mean
from windlass.spec.quantity import read_cpus
from windlass.trainer.sdk_errors import WrongArgument

_SETTINGS = {
    "cpu": "cpus",
    "memory": "memory",
    "storage": "ephemeral_storage",
    "ephemeral-storage": "ephemeral_storage",
}
_GPU = "nvidia.com/gpu"
_EXAMPLE = '{"cpu": "4", "memory": "16Gi", "gpu": 1}'


def read_resources(resources: Mapping[str, Any] | None, keyword: str) -> dict[str, Any]:
    """The settings that mean the same; `keyword` is what errors call it."""
    if resources is not None and not isinstance(resources, Mapping):
        raise WrongArgument(f"{keyword} is a dict, not {resources!r:.60}", hint=_EXAMPLE)
    settings: dict[str, Any] = {}
    for name, amount in (resources or {}).items():
        if name in _SETTINGS:
            settings[_SETTINGS[name]] = f"{amount:g}" if isinstance(amount, float) else str(amount)
            continue
        resource = _name_gpu(name)
        if not resource:
            hint = did_you_mean(name, (*_SETTINGS, "gpu"), _EXAMPLE, show=repr)
            raise WrongArgument(f"{keyword} has no {name!r}", hint=hint)
        if "gpus" in settings:
            raise WrongArgument(f"{keyword} asks for GPUs of two kinds", hint=_EXAMPLE)
        settings["gpus"] = _count(name, amount, keyword)
        if resource != _GPU:
            settings["gpu_resource"] = resource
    return settings


def count_processes(resources: Mapping[str, Any] | None, keyword: str) -> int | None:
    """How many processes Kubeflow Trainer starts on a node with these: None is one per GPU, or one."""
    settings = read_resources(resources, keyword)
    if settings.get("gpus") or not settings.get("cpus"):
        return None
    cpus = str(settings["cpus"])
    try:
        return max(1, math.ceil(read_cpus(cpus)))
    except SpecError:
        raise WrongArgument(f"{keyword}: {cpus!r} is not a number of CPUs", hint=_EXAMPLE) from None


def _name_gpu(name: Any) -> str:
    """The resource of Kubernetes that is meant; empty where it is none that counts devices."""
    text = str(name)
    if text == "gpu":
        return _GPU
    if text.startswith("mig-"):
        return f"nvidia.com/{text}"
    return text if "/" in text else ""


def _count(name: str, amount: Any, keyword: str) -> int:
    try:
        number = int(str(amount))
    except ValueError:
        number = -1
    if number < 0:
        raise WrongArgument(
            f"{keyword}: {name!r} is a whole number, not {amount!r:.40}", hint=_EXAMPLE
        )
    return number
