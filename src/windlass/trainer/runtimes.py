"""Runtimes, as the SDK shows them: those of a cluster with Kubeflow Trainer, else the one there always is.

The copies that jobs have of their runtimes are not among them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from windlass import names
from windlass.engines.dialects.trainjob import CONTAINER, LABEL_FRAMEWORK, RUNTIME
from windlass.kube.client.api import Api
from windlass.kube.client.api_errors import Forbidden
from windlass.kube.objects.fields import Object, labels_of, name_of
from windlass.kube.objects.kinds import CLUSTER_TRAINING_RUNTIMES, TRAINING_RUNTIMES
from windlass.near_names import did_you_mean
from windlass.trainer.sdk_errors import WrongArgument
from windlass.trainer.types import UNKNOWN, Runtime, RuntimeKind, RuntimeTrainer, TrainerType

_BUILTIN = "torchtune"
_FRAMEWORK = "torch"


def make_runtime(name: str, *, image: str, num_nodes: int = 1) -> Runtime:
    """A runtime of which no more is known."""
    trainer = RuntimeTrainer(
        trainer_type=TrainerType.CUSTOM_TRAINER,
        framework=_FRAMEWORK,
        image=image,
        num_nodes=num_nodes,
    )
    return Runtime(name=name, trainer=trainer, kind=RuntimeKind.CLUSTER_TRAINING_RUNTIME)


def list_runtimes(api: Api | None, *, image: str) -> list[Runtime]:
    """Those of the namespace first; without an API that serves them the one that is there by itself."""
    if api is None:
        return [make_runtime(RUNTIME, image=image)]
    runtimes: dict[str, Runtime] = {}
    for kind in (TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES):
        with contextlib.suppress(Forbidden):  # not everybody may list those of the cluster
            for body in api.list(kind):
                if names.LABEL_JOB not in labels_of(body) and labels_of(body).get(LABEL_FRAMEWORK):
                    runtimes.setdefault(name_of(body), read_runtime(body))
    return list(runtimes.values())


def find_runtime(wanted: str | Runtime | None, runtimes: list[Runtime]) -> Runtime:
    """The one of that name."""
    name = RUNTIME if wanted is None else str(getattr(wanted, "name", wanted))
    for runtime in runtimes:
        if runtime.name == name:
            return runtime
    known = [runtime.name for runtime in runtimes]
    hint = did_you_mean(name, known) if known else "ask an admin of the cluster for one"
    raise WrongArgument(f"there is no runtime {name!r}", hint=hint)


def read_runtime(body: Object) -> Runtime:
    """A (Cluster)TrainingRuntime of the cluster."""
    framework = labels_of(body).get(LABEL_FRAMEWORK, UNKNOWN)
    is_builtin = framework == _BUILTIN
    container = _find_container(body)
    device, count = read_device(container.get("resources", {}).get("limits") or {})
    trainer = RuntimeTrainer(
        trainer_type=TrainerType.BUILTIN_TRAINER if is_builtin else TrainerType.CUSTOM_TRAINER,
        framework=framework,
        image=str(container.get("image", "")),
        num_nodes=int((body["spec"].get("mlPolicy") or {}).get("numNodes") or 1),
        device=device,
        device_count=count,
    )
    return Runtime(name=name_of(body), trainer=trainer, kind=RuntimeKind(body["kind"]))


def read_device(resources: Mapping[str, Any]) -> tuple[str, str]:
    """What a node computes with, and how many of them."""
    for name, amount in resources.items():
        if "gpu" in name or "/" in name:
            return "gpu", str(amount)
    return ("cpu", str(resources["cpu"])) if resources.get("cpu") else (UNKNOWN, UNKNOWN)


def _find_container(body: Object) -> Object:
    for step in body["spec"].get("template", {}).get("spec", {}).get("replicatedJobs") or ():
        pod = step.get("template", {}).get("spec", {}).get("template", {}).get("spec", {})
        for container in pod.get("containers") or ():
            if container.get("name") == CONTAINER:
                trainer: Object = container
                return trainer
    return {}
