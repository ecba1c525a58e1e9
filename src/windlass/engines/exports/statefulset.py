"""Export of a headless Service and a StatefulSet with torchrun, which runs without Windlass.

Objects are named after the job's name or its id, so that two exports do not collide. Exports of the recipes
use the names in their guide. Pods keep running after training, because a StatefulSet would restart them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from windlass.engines.exports.plain_export import read_solo
from windlass.kube.client.access import Right
from windlass.kube.objects.manifests import pod_of
from windlass.kube.objects.naming import headless_name
from windlass.kube.objects.torchrun_pods import (
    Rendezvous,
    TorchrunPods,
    choose_plain_name,
    make_torchrun_claims,
    make_torchrun_code,
    make_torchrun_metadata,
    make_torchrun_service,
    make_torchrun_template,
    unwrap_plan,
)
from windlass.plan.plan import Facts, Plan
from windlass.settings import Settings, start_folder
from windlass.spec.pod_spec import PodSpec
from windlass.spec.storage import Claim
from windlass.spec.work import Command, Work

Object = dict[str, Any]

NAME = "train-llm"
SERVICE = "train-rdzv"
# Programs of the recipes, as guides name them.
_RECIPES = ("train_framework", "k8s-training/k8s/train.py", "windlass.recipes.train")
MODELS = Claim(claim="models-pvc", path="/models")  # claim with models, for jobs that read one
CLAIMS = (Claim(claim="datasets-pvc", path="/data"), Claim(claim="outputs-pvc", path="/out"))
HF_SECRET = "hf-token"  # noqa: S105
HF_KEY = "HUGGINGFACE_HUB_TOKEN"  # the key in that Secret
HF_VARIABLES = ("HF_TOKEN", "HUGGINGFACE_HUB_TOKEN")
_APPLY = ("get", "create", "patch", "delete")
# Rights that `kubectl` needs to apply the export, follow it and delete it again.
RIGHTS = (
    Right(
        group="apps",
        resource="statefulsets",
        verbs=(*_APPLY, "list", "watch"),
        purpose="apply, list and delete training jobs",
    ),
    Right(
        group="apps",
        resource="statefulsets/scale",
        verbs=("get", "patch"),
        purpose="kubectl scale, which ends the pods of a finished training",
    ),
    Right(resource="services", verbs=_APPLY, purpose="give the pods DNS names"),
    Right(resource="configmaps", verbs=_APPLY, purpose="the script"),
    Right(
        resource="persistentvolumeclaims",
        verbs=_APPLY,
        purpose="create the export's volumes",
        optional=True,
    ),
    Right(resource="pods", verbs=("get", "list", "watch"), purpose="follow the pods"),
    Right(resource="pods/log", verbs=("get",), purpose="kubectl logs"),
    Right(
        resource="events", verbs=("list",), purpose="explain why a pod is pending", optional=True
    ),
)
_INDEX = "metadata.labels['apps.kubernetes.io/pod-index']"


def render(
    plan: Plan, *, script: str | None, rendezvous: Rendezvous, flags: tuple[str, ...] = ()
) -> list[Object]:
    """Return ConfigMap, claims, Service and StatefulSet, in the order to apply them."""
    pod = _with_claims(pod_of(plan), plan.work)
    has_name = plan.name != plan.job_id
    is_recipe = not has_name and any(name in plan.work.label for name in _RECIPES)
    name = NAME if is_recipe else choose_plain_name(plan)
    pods = TorchrunPods(
        name=name,
        service=SERVICE if is_recipe else headless_name(name),
        labels={"app": name},
        index_path=_INDEX,
        stays=True,
        rendezvous=rendezvous,
        flags=flags,
        script=script,
        env=_make_token_env(),
        nccl_debug="INFO",
    )
    return [
        *make_torchrun_code(plan, pod, pods),
        *make_torchrun_claims(pod, pods, num_pods=len(plan.nodes)),
        make_torchrun_service(pod, pods),
        _make_stateful_set(plan, pod, pods),
    ]


def _with_claims(pod: PodSpec, work: Work) -> PodSpec:
    """Return the pod with the claims of the recipe, except at paths with other volumes.

    The claim for models is added only if the work refers to it.
    """
    taken = {volume.path for volume in pod.volumes}
    wanted = (*CLAIMS, *([MODELS] if _names_model(work) else []))
    missing = tuple(claim for claim in wanted if claim.path not in taken)
    return replace(pod, volumes=(*missing, *pod.volumes))


def _names_model(work: Work) -> bool:
    """Return whether an argument of the work, or the value in --flag=VALUE, is a path under /models."""
    words = work.argv if isinstance(work, Command) else getattr(work, "args", ())
    paths = (word.rpartition("=")[2] for word in words)
    return any(path == MODELS.path or path.startswith(f"{MODELS.path}/") for path in paths)


def _make_token_env() -> list[Object]:
    source = {"secretKeyRef": {"name": HF_SECRET, "key": HF_KEY, "optional": True}}
    return [{"name": name, "valueFrom": source} for name in HF_VARIABLES]


def _make_stateful_set(plan: Plan, pod: PodSpec, pods: TorchrunPods) -> Object:
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": make_torchrun_metadata(pod, pods, pods.name),
        "spec": {
            "serviceName": pods.service,
            "replicas": len(plan.nodes),
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": dict(pods.labels)},
            "template": make_torchrun_template(plan, pod, pods),
        },
    }


def split_documents(documents: Sequence[Object]) -> dict[str, list[Object]]:
    """Group the documents by file name, in the order to apply them."""
    files: dict[str, list[Object]] = {"train-rdzv.yaml": [], "stateful-set.yaml": []}
    for document in documents:
        is_service = document["kind"] == "Service"
        files["train-rdzv.yaml" if is_service else "stateful-set.yaml"].append(document)
    return files


class StatefulSetExport:
    """`Renderer` that writes documents, and cannot run jobs."""

    name = "statefulset"
    can = frozenset({"detach", "restarts", "pods"})

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def facts(self) -> Facts:
        return Facts(environ={})

    def render(self, plan: Plan, **_inputs: object) -> list[Object]:
        rendezvous = Rendezvous(
            backend=self._settings.rdzv_backend, endpoint=self._settings.rdzv_endpoint
        )
        plan, flags = unwrap_plan(plan)
        script = read_solo(plan, start_folder())
        return render(plan, script=script, rendezvous=rendezvous, flags=flags)
