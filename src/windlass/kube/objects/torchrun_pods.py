"""Pods that run torchrun without Windlass: the common parts of plain exports. No I/O.

A `TorchrunPods` has the differences between exports: names, labels, the field with a pod's index, and
whether finished pods stay. If an operator sets torchrun's own variables (`PET_*`), the pod runs only
torchrun. Otherwise pod 0 opens the store at its own address, and the other pods look up its DNS name.
torchrun's agents retry the lookup, so a negative DNS cache entry only delays the training job.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from windlass import names
from windlass.errors import SpecError
from windlass.kube.objects.manifests import (
    CODE,
    SHM,
    SHM_PATH,
    STATE,
    make_claim_spec,
    make_requested_mounts,
    make_requested_volumes,
    make_shm,
    named_mounts,
)
from windlass.kube.objects.naming import claim_name, object_name
from windlass.kube.objects.pod_template import (
    CONTAINER_SECURITY,
    apply_patch,
    make_env_from,
    make_placement,
    make_pod_security,
    make_resources,
    make_secret_env,
    pull_policy,
)
from windlass.plan.plan import Plan
from windlass.spec.launchers import unwrap_torchrun
from windlass.spec.pod_spec import PodSpec
from windlass.spec.storage import NewClaim
from windlass.spec.work import Calls, Command, Function, Module, Script

Object = dict[str, Any]

PORT = names.POD_MASTER_PORT
CONTAINER = "trainer"
CODE_FOLDER = "/code"
STATE_FOLDER = "/run/train"
MAX_SCRIPT_BYTES = 200_000  # client-side `kubectl apply` accepts this much
_WAIT_S = 600
_MAX_NAME = 50
_RESTARTS = re.compile(r"--max[-_]restarts(=|\Z)")
_OF_WINDLASS = (
    *(names.JOB_ID, names.JOB_NAME, names.TORCHELASTIC_RUN_ID, names.POD_HOSTS),
    names.PET_NPROC_PER_NODE,
    *(names.TORCHELASTIC_MAX_RESTARTS, names.TORCHELASTIC_SIGNALS_TO_HANDLE, names.GRACE),
)
_BACKENDS = {"etcd": "etcd-v2"}  # torchrun's "etcd" needs an older client, which few images have
_NCCL_DEBUG = "NCCL_DEBUG"
_NCCL = {
    "NCCL_SOCKET_IFNAME": "eth0",
    names.TORCH_NCCL_ASYNC_ERROR_HANDLING: "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Rendezvous of torchrun's agents. Without an endpoint, pod 0 hosts it."""

    backend: str = "c10d"
    endpoint: str = ""

    def __post_init__(self) -> None:
        if self.backend != "c10d" and not self.endpoint:
            raise SpecError(
                f"--rdzv-backend {self.backend} requires the address of a server",
                hint="set --rdzv-endpoint HOST:PORT, or omit --rdzv-backend to use c10d",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrunPods:
    """Names and options of the pods of one training job."""

    name: str
    service: str
    labels: Mapping[str, str]
    index_path: str  # the pod field with its index, empty if an operator sets PET_*
    stays: bool = False  # True if a finished pod must not exit
    command: tuple[str, ...] = ()  # the command to run instead of torchrun
    container: str = CONTAINER
    rendezvous: Rendezvous = Rendezvous()
    flags: tuple[str, ...] = ()  # torchrun flags of the user
    script: str | None = None  # text of the script to ship, or None if the code is in the image
    env: list[Object] = field(default_factory=list)
    nccl_debug: str = "WARN"


def unwrap_plan(plan: Plan) -> tuple[Plan, tuple[str, ...]]:
    """Return the plan of the work inside a torchrun command, and the torchrun flags to keep.

    The plan has as many ranks per node as torchrun would start.
    """
    # a plain export does not include Windlass's own archive
    plan = replace(plan, env={key: plan.env[key] for key in plan.env if key != names.TRAIN})
    if not isinstance(plan.work, Command):
        return plan, ()
    work, flags = unwrap_torchrun(plan.work)
    procs = plan.work.procs or plan.nodes[0].num_ranks
    nodes = tuple(
        replace(node, first_rank=index * procs, num_ranks=procs)
        for index, node in enumerate(plan.nodes)
    )
    return replace(plan, work=work, nodes=nodes), flags


def choose_plain_name(plan: Plan) -> str:
    """Return the name of an export: the user's name for it, or the unique job ID."""
    return (plan.name != plan.job_id and object_name(plan.name, _MAX_NAME)) or plan.job_id


def make_operator_pods(
    plan: Plan, script: str | None, flags: tuple[str, ...], *, container: str
) -> TorchrunPods:
    """Return pods that an operator names, numbers and connects.

    `container` is the operator's name for the training container.
    """
    name = choose_plain_name(plan)
    return TorchrunPods(
        name=name,
        service="",
        labels={"app": name},
        index_path="",
        flags=(*([f"--max-restarts={plan.restarts}"] if plan.restarts else []), *flags),
        script=script,
        container=container,
    )


def make_torchrun_template(plan: Plan, pod: PodSpec, pods: TorchrunPods) -> Object:
    """Return the pod template of a torchrun export."""
    for volume in pod.volumes:
        if volume.path in (CODE_FOLDER, STATE_FOLDER):
            raise SpecError(f"{volume.path} is already in use", hint="mount the volume elsewhere")
    num_pods = len(plan.nodes)
    template = {
        "metadata": {
            "labels": {**pods.labels, **pod.labels},
            **({"annotations": dict(pod.annotations)} if pod.annotations else {}),
        },
        "spec": {
            **make_placement(pod, pods.labels, num_pods=num_pods),
            **({"subdomain": pods.service} if pods.service else {}),
            "automountServiceAccountToken": bool(pod.service_account),
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": math.ceil(plan.grace_s) + 10,
            "securityContext": make_pod_security(pod),
            "containers": [_make_container(plan, pod, pods)],
            "volumes": _make_volumes(pod, pods),
        },
    }
    return apply_patch(template, pod.patch) if pod.patch else template


def _make_container(plan: Plan, pod: PodSpec, pods: TorchrunPods) -> Object:
    is_placed = not pods.index_path
    container = {
        "name": pods.container,
        "image": pod.image,
        "imagePullPolicy": pull_policy(pod.image),
        "command": _make_command(plan, pods),
        "env": _make_env(plan, pod, pods),
        "envFrom": make_env_from(pod),
        "ports": [] if is_placed else [{"name": "rdzv", "containerPort": PORT}],
        "resources": make_resources(pod),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [
            {"name": SHM, "mountPath": SHM_PATH},
            {"name": STATE, "mountPath": STATE_FOLDER},
            *([{"name": CODE, "mountPath": CODE_FOLDER}] if pods.script is not None else []),
            *make_requested_mounts(pod),
        ],
    }
    return {key: value for key, value in container.items() if value}


def _make_command(plan: Plan, pods: TorchrunPods) -> list[str]:
    if pods.command:
        return [*pods.command]
    if pods.index_path:
        return ["/bin/sh", "-c", make_shell(plan, pods)]
    return ["torchrun", *pods.flags, *_make_work(plan, pods)]


def _make_volumes(pod: PodSpec, pods: TorchrunPods) -> list[Object]:
    code = {"name": CODE, "configMap": {"name": f"{pods.name}-code"}}
    return [
        make_shm(pod),
        {"name": STATE, "emptyDir": {}},
        *([code] if pods.script is not None else []),
        *make_requested_volumes(pod, pods.name),
    ]


def _make_env(plan: Plan, pod: PodSpec, pods: TorchrunPods) -> list[Object]:
    texts = {
        **(_make_place(plan, pods) if pods.index_path else {}),
        "HOME": STATE_FOLDER,
        "USER": CONTAINER,
        "LOGNAME": CONTAINER,
        _NCCL_DEBUG: pods.nccl_debug,
        **_NCCL,
        **{key: value for key, value in plan.env.items() if key not in _OF_WINDLASS},
    }
    fields = {names.RANK: pods.index_path, "POD_IP": "status.podIP"} if pods.index_path else {}
    own = [
        *(_field(name, path) for name, path in fields.items()),
        *({"name": name, "value": value} for name, value in texts.items()),
    ]
    secret_env = make_secret_env(pod)
    taken = {variable["name"] for variable in secret_env} | {variable["name"] for variable in own}
    return [*own, *(v for v in pods.env if v["name"] not in taken), *secret_env]


def _make_place(plan: Plan, pods: TorchrunPods) -> dict[str, str]:
    num_nodes = len(plan.nodes)
    is_elastic = plan.min_nodes < num_nodes
    return {
        "NNODES": f"{plan.min_nodes}:{num_nodes}" if is_elastic else str(num_nodes),
        "NPROC_PER_NODE": str(plan.nodes[0].num_ranks),
        names.MASTER_ADDR: f"{pods.name}-0.{pods.service}",
        names.MASTER_PORT: str(PORT),
    }


def _field(name: str, path: str) -> Object:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def make_shell(plan: Plan, pods: TorchrunPods) -> str:
    """Return a pod's shell script: torchrun with signals forwarded, then a wait if pods stay."""
    lines = [
        f'export {names.RANK}="${{{names.RANK}:-${{HOSTNAME##*-}}}}"',
        *([_STAY] if pods.stays else []),
        *_make_rendezvous_flags(pods.rendezvous),
        f"{_make_torchrun(plan, pods)} &",
        _WAIT_FOR_IT,
        _FINISHED if pods.stays else "exit $code",
    ]
    return "\n".join(lines) + "\n"


_STAY = f"""stay() {{
  trap 'exit 0' TERM INT
  echo "training is finished; this pod stays until it is scaled down or deleted"
  while :; do sleep 3600 & wait $!; done
}}
[ -e {STATE_FOLDER}/finished ] && stay"""

# `wait` returns when a signal arrives, so wait again until the child has exited
_WAIT_FOR_IT = """child=$!
trap 'kill -TERM $child 2>/dev/null || exit 143' TERM INT
wait $child; code=$?
while kill -0 $child 2>/dev/null; do wait $child; code=$?; done"""

_FINISHED = f"""[ $code -eq 0 ] || exit $code
touch {STATE_FOLDER}/finished
stay"""


def _make_rendezvous_flags(rendezvous: Rendezvous) -> list[str]:
    if rendezvous.endpoint:
        endpoint = shlex.quote(rendezvous.endpoint)
        return [f"endpoint={endpoint}", f"conf=timeout={_WAIT_S}"]
    # Pod 0 uses its IP. Its DNS name may not exist yet, and the DNS server would cache the failed lookup
    return [
        f'host=${names.MASTER_ADDR} is_host=0; [ "${names.RANK}" = 0 ] && host=$POD_IP is_host=1',
        f"endpoint=$host:${names.MASTER_PORT}",
        f"conf=is_host=$is_host,timeout={_WAIT_S},read_timeout={_WAIT_S}",
    ]


def _make_torchrun(plan: Plan, pods: TorchrunPods) -> str:
    backend = pods.rendezvous.backend
    restarts = f"--max-restarts={plan.restarts}"
    ours = [
        '--nnodes="$NNODES" --nproc-per-node="$NPROC_PER_NODE"',
        f"--rdzv-backend={_BACKENDS.get(backend, backend)}",
        f'--rdzv-endpoint="$endpoint" --rdzv-id={pods.name} --rdzv-conf="$conf"',
        *([] if any(_RESTARTS.match(flag) for flag in pods.flags) else [restarts]),
        *([shlex.join(pods.flags)] if pods.flags else []),
    ]
    return " \\\n  ".join(["torchrun", *ours, shlex.join(_make_work(plan, pods))])


def _make_work(plan: Plan, pods: TorchrunPods) -> tuple[str, ...]:
    work = plan.work
    match work:
        case Script():
            path = work.path
            if pods.script is not None:
                path = f"{CODE_FOLDER}/{PurePosixPath(work.path).name}"
            return (path, *work.args)
        case Module():
            return ("--module", work.name, *work.args)
        case Command():
            return ("--no-python", *work.argv)
        case Function() | Calls():
            raise SpecError(
                "torchrun runs scripts, modules and commands, not functions",
                hint="pass a script, or export a job with Windlass: -e kubernetes without --plain",
            )


def make_torchrun_service(pod: PodSpec, pods: TorchrunPods) -> Object:
    """Return the headless Service, which gives the pods DNS names as soon as they have addresses."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": make_torchrun_metadata(pod, pods, pods.service),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": dict(pods.labels),
            "ports": [{"name": "rdzv", "port": PORT, "targetPort": PORT}],
        },
    }


def make_torchrun_code(plan: Plan, pod: PodSpec, pods: TorchrunPods) -> list[Object]:
    """Return the ConfigMap of the shipped script, or an empty list if the code is in the image."""
    if pods.script is None or not isinstance(plan.work, Script):
        return []
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": make_torchrun_metadata(pod, pods, f"{pods.name}-code"),
            "data": {PurePosixPath(plan.work.path).name: pods.script},
        }
    ]


def make_torchrun_claims(pod: PodSpec, pods: TorchrunPods, *, num_pods: int) -> list[Object]:
    """Return the claims that are created with the training job. They stay when it is deleted."""
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": make_torchrun_metadata(pod, pods, claim_name(pods.name, name)),
            "spec": make_claim_spec(mount, num_pods=num_pods),
        }
        for name, mount in named_mounts(pod)
        if isinstance(mount, NewClaim)
    ]


def make_torchrun_metadata(pod: PodSpec, pods: TorchrunPods, name: str) -> Object:
    """Return the metadata of one object of the training job."""
    where = {"namespace": pod.namespace} if pod.namespace else {}
    return {"name": name, **where, "labels": {**pods.labels, **pod.labels}}
