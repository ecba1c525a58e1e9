"""The one table, one line per setting: flags, variables, file keys and checks all come from it.

A record of values and where each came from. How they are read is `settings.reading`; what a setting means
to a job is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields

from windlass.errors import SpecError
from windlass.near_names import did_you_mean
from windlass.settings.setting import NodeRange, Setting
from windlass.settings.setting import is_setting as _is
from windlass.settings.xdg import state_home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PODS = "On Kubernetes"
EXPORT = "Exports without Windlass"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting's value, and where it came from."""

    engine: str = _is("str", "local", "what provides the nodes")
    nodes: int | NodeRange = _is(  # noqa: RUF009
        "nodes", 1, "how many nodes; MIN:MAX: at least and at most", minimum=1
    )
    procs: int | None = _is("int", None, "ranks per node; none: one per GPU, else one", minimum=1)
    gpus: int = _is("int", 0, "GPUs per node", minimum=0)
    pretend_gpus: bool = _is(
        "bool", False, "run without the GPUs that are asked for: as many ranks, on the CPU"
    )
    framework: str = _is(
        "str", "", "how the work is spread over ranks; empty: pytorch, or command for a command"
    )
    name: str = _is("str", "", "the job's name; empty: made from the work")
    env: Mapping[str, str] = _is("table", {}, "environment variables of every rank")
    start: str = _is("str", "fork", "how ranks start", choices=("fork", "spawn"))
    preload: tuple[str, ...] | None = _is(
        "list",
        None,
        "modules imported once, before ranks start; unset: torch, if the source leads to it",
    )
    python: str = _is(
        "str", "", "the nodes' interpreter; empty: this one, in pods the image's python3"
    )
    restarts: int = _is("int", 0, "how often to start again when the code fails", minimum=0)
    node_restarts: int = _is("int", 3, "how often to go on after losing a node", minimum=0)
    timeout_s: float | None = _is(
        "duration", None, "end the job this long after it first starts", above=0
    )
    grace_s: float = _is("duration", 10.0, "how long ranks have between SIGTERM and SIGKILL")
    peer_wait_s: float = _is(
        "duration", 60.0, "how long a finished rank keeps its connections open for the others"
    )
    lease_s: float | None = _is(
        "duration", None, "how long a job outlives a client that went away; none: the engine's own"
    )
    join_timeout_s: float | None = _is(
        "duration", None, "how long to wait for all nodes; none: the engine's own"
    )
    image: str = _is(
        "str",
        "",
        "the pods' image, with Python and torch in it; empty: PyTorch's own, of the torch here",
        group=PODS,
    )
    in_image: bool = _is(
        "bool", False, "the target is part of the image: no code is sent", group=PODS
    )
    context: str = _is("str", "", "the kubeconfig context; empty: the current one", group=PODS)
    namespace: str = _is("str", "", "where the pods run; empty: the context's own", group=PODS)
    cpus: str = _is("quantity", "", "processors per node: 4, 500m", group=PODS)
    memory: str = _is("quantity", "", "memory per node: 512Gi", group=PODS)
    ephemeral_storage: str = _is("quantity", "", "scratch disk per node: 100Gi", group=PODS)
    shm: str = _is("quantity", "", "size of /dev/shm; empty: half of the memory", group=PODS)
    requests: Mapping[str, str] = _is(
        *("table", {}, "request less than the limit: cpus, memory, ephemeral_storage"),
        group=PODS,
        spelt="request",
    )
    gpu_type: str = _is("str", "", "the value of the nodes' gpu_label; A|B: either", group=PODS)
    gpu_label: str = _is(
        "str",
        "nvidia.com/gpu.product",
        "the node label that names the type of its GPUs",
        group=PODS,
    )
    gpu_resource: str = _is(
        "str", "nvidia.com/gpu", "the resource that a GPU is requested as", group=PODS
    )
    node_selector: Mapping[str, str] = _is(
        "table", {}, "labels the nodes must have; A|B: either", group=PODS
    )
    tolerations: tuple[str, ...] = _is(
        *("many", (), "taints to tolerate: KEY, KEY=VALUE, KEY=VALUE:EFFECT"),
        group=PODS,
        spelt="toleration",
    )
    spread: str = _is(
        *("str", "soft", "put a job's pods on different hosts: if possible, always, or not at all"),
        choices=("soft", "hard", "none"),
        group=PODS,
    )
    pack: str = _is(
        *("str", "", "a label that all nodes of the job share: topology.kubernetes.io/zone"),
        group=PODS,
    )
    priority_class: str = _is("str", "", "the pods' priority class", group=PODS)
    queue: str = _is("str", "", "the Kueue queue", group=PODS)
    runtime: str = _is(
        *(
            "str",
            "",
            "the TrainingRuntime that a TrainJob is made from; default: torch-distributed",
        ),
        group=PODS,
    )
    service_account: str = _is("str", "", "the service account that the pods use", group=PODS)
    run_as: int | None = _is(
        "int",
        1000,
        "the pods' user id; none: the image's own",
        minimum=0,
        optional=True,
        group=PODS,
    )
    pull_secrets: tuple[str, ...] = _is(
        "many", (), "Secrets for pulling images", group=PODS, spelt="pull-secret"
    )
    secrets: tuple[str, ...] = _is(
        *("many", (), "Secrets: NAME, VAR=NAME:KEY or NAME:/folder"), group=PODS, spelt="secret"
    )
    volumes: tuple[str, ...] = _is(
        *(
            "many",
            (),
            "CLAIM:/path, new:10Gi:/path[:RWX][:CLASS] (ends with the job), emptydir[:5Gi]:/path",
        ),
        group=PODS,
        spelt="volume",
    )
    allow_host_path: bool = _is(
        "bool", False, "allow volumes that are folders of the host", group=PODS
    )
    mesh_name: str = _is(
        *("str", "", "the Monarch mesh that the pods are; empty: the job's id without dashes"),
        group=PODS,
    )
    open_mesh: bool = _is(
        *("bool", False, "let all pods of the namespace use the Monarch mesh, without TLS"),
        group=PODS,
    )
    labels: Mapping[str, str] = _is("table", {}, "labels of the pods", group=PODS, spelt="label")
    annotations: Mapping[str, str] = _is(
        "table", {}, "annotations of the pods", group=PODS, spelt="annotation"
    )
    ttl_s: float | None = _is(
        *("duration", 86400.0, "how long an ended job is kept; none: until it is removed"),
        optional=True,
        group=PODS,
    )
    patch: str | Mapping[str, Any] | None = _is(
        "patch", None, "YAML to merge into the pods' template, or a file that holds it", group=PODS
    )
    rdzv_backend: str = _is(
        *("str", "c10d", "the rendezvous backend of torchrun; etcd means etcd-v2"),
        choices=("c10d", "etcd", "etcd-v2"),
        group=EXPORT,
    )
    rdzv_endpoint: str = _is(
        "str", "", "the rendezvous endpoint; empty: the first pod and port 29500", group=EXPORT
    )
    home: str = _is("path", state_home, "the folder for jobs and their logs")
    origins: Mapping[str, str] = field(repr=False)

    def value(self, name: str) -> Any:
        return getattr(self, find_setting(name).name)

    def __getitem__(self, name: str) -> Any:
        return self.value(name)

    def origin(self, name: str) -> str:
        """Like "flag --nodes", "environment WINDLASS_NODES", "/my/windlass.toml" or "default"."""
        return self.origins[find_setting(name).name]

    def items(self) -> Iterator[tuple[str, Any]]:
        return ((setting.name, getattr(self, setting.name)) for setting in SETTINGS)


SETTINGS = tuple(Setting(name=f.name, **f.metadata) for f in fields(Settings) if f.metadata)
BY_NAME = {setting.name: setting for setting in SETTINGS}


def find_setting(name: str) -> Setting:
    if name not in BY_NAME:
        raise SpecError(
            f"there is no setting {name!r}", hint=did_you_mean(name, BY_NAME, show=repr)
        )
    return BY_NAME[name]
