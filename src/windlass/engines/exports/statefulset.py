"""Export only: a headless Service, a StatefulSet and torchrun. Needs no Windlass in the cluster or the image.

The names are those of the classic recipe, unless the job has a name of its own. Pods stay when training is
finished, since a StatefulSet would start them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from windlass.engines.exports.single_script import read_solo
from windlass.engines.protocol import JobRef, LogReader, Stream
from windlass.engines.secret_env import NO_HIDDEN
from windlass.errors import SpecError
from windlass.kube.mounts import pod_of
from windlass.kube.naming import object_name
from windlass.kube.plain import make_torchrun_claims
from windlass.kube.torchrun_pods import (
    Rendezvous,
    TorchrunPods,
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
from windlass.wire.log_lines import LogQuery
from windlass.wire.results import ResultHeader
from windlass.wire.status import JobStatus

Object = dict[str, Any]

NAME = "train-llm"
SERVICE = "train-rdzv"
CLAIMS = (Claim(claim="datasets-pvc", path="/data"), Claim(claim="outputs-pvc", path="/out"))
HF_SECRET = "hf-token"  # noqa: S105
HF_VARIABLES = ("HF_TOKEN", "HUGGINGFACE_HUB_TOKEN")
_INDEX = "metadata.labels['apps.kubernetes.io/pod-index']"
_MAX_NAME = 50  # a StatefulSet puts a hash of ten behind it, into a label


def render(
    plan: Plan, *, script: str | None, rendezvous: Rendezvous, flags: tuple[str, ...] = ()
) -> list[Object]:
    """ConfigMap, claims, Service and StatefulSet, in the order in which they can be applied. Pure."""
    pod = _with_claims(pod_of(plan))
    has_name = plan.name != plan.job_id
    name = (object_name(plan.name, _MAX_NAME) if has_name else "") or NAME
    pods = TorchrunPods(
        name=name,
        service=f"{name}-rdzv" if has_name else SERVICE,
        labels={"app": name},
        index_path=_INDEX,
        stays=True,
        rendezvous=rendezvous,
        flags=flags,
        script=script,
        env=_make_token_env(),
    )
    return [
        *make_torchrun_code(plan, pod, pods),
        *make_torchrun_claims(pod, pods, num_pods=len(plan.nodes)),
        make_torchrun_service(pod, pods),
        _make_stateful_set(plan, pod, pods),
    ]


def _with_claims(pod: PodSpec) -> PodSpec:
    """The recipe's claims, where nothing else was asked for at their places."""
    taken = {volume.path for volume in pod.volumes}
    missing = tuple(claim for claim in CLAIMS if claim.path not in taken)
    return replace(pod, volumes=(*missing, *pod.volumes))


def _make_token_env() -> list[Object]:
    source = {"secretKeyRef": {"name": HF_SECRET, "key": "token", "optional": True}}
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


class StatefulSetEngine:
    """Renders, and does nothing else."""

    name = "statefulset"
    can = frozenset({"detach", "restarts", "pods"})

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def facts(self) -> Facts:
        return Facts(environ={})

    def render(self, plan: Plan) -> list[Object]:
        rendezvous = Rendezvous(
            backend=self._settings.rdzv_backend, endpoint=self._settings.rdzv_endpoint
        )
        plan, flags = unwrap_plan(plan)
        script = read_solo(plan, start_folder())
        return render(plan, script=script, rendezvous=rendezvous, flags=flags)

    def submit(
        self,
        plan: Plan,  # noqa: ARG002
        payload: bytes | None,  # noqa: ARG002
        bundle: Path | None = None,  # noqa: ARG002
        *,
        hidden: Mapping[str, str] = NO_HIDDEN,  # noqa: ARG002
    ) -> JobRef:
        _refuse()

    def status(self, _ref: JobRef) -> JobStatus:
        _refuse()

    def logs(self, _ref: JobRef, _query: LogQuery) -> LogReader:
        _refuse()

    def results(self, _ref: JobRef, **_how: object) -> list[tuple[ResultHeader, bytes] | None]:
        _refuse()

    def cancel(self, _ref: JobRef, **_how: object) -> None:
        _refuse()

    def hold(self, _ref: JobRef) -> AbstractContextManager[None]:
        _refuse()

    def plan(self, _ref: JobRef) -> Plan:
        _refuse()

    def dial(self, _ref: JobRef) -> Stream:
        _refuse()

    def grow(self, _ref: JobRef, _indexes: Sequence[int], _num_nodes: int, **_how: object) -> None:
        _refuse()

    def keep_place(self, _ref: JobRef, _until_s: float | None) -> None:
        _refuse()

    def is_made_here(self, _ref: JobRef) -> bool:
        return False

    def identity(self) -> str:
        return ""

    def let_go(self, _ref: JobRef) -> None:
        _refuse()

    def jobs(self) -> list[JobRef]:
        return []

    def computes(self) -> list[JobRef]:
        return []

    def jobs_here(self) -> list[JobRef]:
        return []

    def remove(self, _ref: JobRef) -> None:
        _refuse()


def _refuse() -> NoReturn:
    raise SpecError(
        "a StatefulSet is only exported, not run by Windlass",
        hint="windlass export -e statefulset ... | kubectl apply -f -, or run with -e kubernetes",
    )
