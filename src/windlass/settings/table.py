"""Table of settings, with the name, flag, variable, type, default and help text of each.

`Setting` describes one setting, `SETTINGS` is the table, and `Settings` holds the values. Defaults below the
user's home directory follow the XDG directories. `settings.reading` reads files and the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields

from windlass.errors import SpecError
from windlass.near_names import did_you_mean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any


# Headings of `--help-all` and of the reference page.
JOB = "Job"
RANKS = "Ranks"
LIMITS = "Restarts and time limits"
PODS = "Kubernetes: pods"
RESOURCES = "Kubernetes: resources"
PLACEMENT = "Kubernetes: placement"
STORAGE = "Kubernetes: volumes and secrets"
EXPORT = "Exports without Windlass"
POD_GROUPS = (PODS, RESOURCES, PLACEMENT, STORAGE)
_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def place(environ: Mapping[str, str], variable: str, fallback: str) -> Path:
    """Return the `windlass` folder in an XDG directory, or in `fallback` below the user's home."""
    from pathlib import Path

    # The XDG specification: relative paths are invalid and must be ignored.
    if Path(environ.get(variable, "")).is_absolute():
        return Path(environ[variable]) / "windlass"
    return user_home(environ) / fallback / "windlass"


def user_home(environ: Mapping[str, str]) -> Path:
    from pathlib import Path

    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()


def state_home(environ: Mapping[str, str]) -> str:
    return str(place(environ, "XDG_STATE_HOME", ".local/state"))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRange:
    """Minimum and maximum number of nodes, written `MIN:MAX`."""

    min: int
    max: int

    def __str__(self) -> str:
        return f"{self.min}:{self.max}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the table: a setting, its limits and its help text."""

    name: str
    kind: str
    default: object
    help: str
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    above: float | None = None
    group: str = JOB  # the heading of its flag in `--help-all`
    spelled: str = ""  # the flag, if it is not made from the name
    optional: bool = False  # accepts "none" as a value
    unset: str = ""  # describes the effect of a default that is empty or computed
    common: bool = False  # the short `--help` shows its flag

    @property
    def flag(self) -> str:
        """Flag that sets it, without the unit of a duration: `--timeout` sets `timeout_s`."""
        return "--" + (self.spelled or self.name.removesuffix("_s").replace("_", "-"))

    @property
    def variable(self) -> str:
        """Environment variable that sets it. Empty for a table, which has no good form in one variable."""
        return "" if self.kind == "table" else "WINDLASS_" + self.name.upper()

    @property
    def default_text(self) -> str:
        """Default as it is shown to users. Empty if leaving the setting out changes nothing."""
        default = self.default
        if self.unset or callable(default) or default is None or default is False:
            return self.unset
        if default in ("", {}, ()):
            return ""
        if self.kind == "duration" and isinstance(default, float):
            return _render_duration(default)
        return str(default)

    @property
    def description(self) -> str:
        """Help text with the default."""
        default = self.default_text
        return f"{self.help} (default: {default})" if default else self.help

    @property
    def may_be_none(self) -> bool:
        return self.optional or self.default is None

    def default_in(self, environ: Mapping[str, str]) -> object:
        return self.default(environ) if callable(self.default) else self.default


def _render_duration(seconds: float) -> str:
    size, unit = next((size, unit) for size, unit in _UNITS if seconds % size == 0)
    return f"{seconds / size:g}{unit}"


def is_setting(
    kind: str, default: object | Callable[[Mapping[str, str]], object], text: str, **limits: object
) -> Any:
    return field(metadata={"kind": kind, "default": default, "help": text, **limits})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Values of all settings, and the source of each."""

    engine: str = is_setting(
        "str", "local", "engine that provides the nodes (see `windlass engines`)", common=True
    )
    nodes: int | NodeRange = is_setting(  # noqa: RUF009
        "nodes", 1, "number of nodes, or a minimum and a maximum", minimum=1, common=True
    )
    procs: int | None = is_setting(
        "int", None, "ranks per node", minimum=1, unset="one per GPU, or 1", common=True
    )
    gpus: int = is_setting("int", 0, "GPUs per node", minimum=0, common=True)
    pretend_gpus: bool = is_setting(
        "bool", False, "run on the CPU, with as many ranks as GPUs are requested"
    )
    framework: str = is_setting(
        "str",
        "",
        "framework that sets up the ranks: pytorch, spmd, ray, monarch or command",
        unset="pytorch, or command for a command",
    )
    name: str = is_setting("str", "", "name of the job", unset="made from the target")
    env: Mapping[str, str] = is_setting(
        "table", {}, "environment variables for every rank", group=RANKS, common=True
    )
    start: str = is_setting(
        *("str", "fork", "start ranks by forking a preloaded process, or in a new interpreter"),
        choices=("fork", "spawn"),
        group=RANKS,
    )
    preload: tuple[str, ...] | None = is_setting(
        *("list", None, "modules to import once, before ranks are forked"),
        group=RANKS,
        unset="torch, if the code imports it",
    )
    python: str = is_setting(
        *("str", "", "Python interpreter of the nodes"),
        group=RANKS,
        unset="this interpreter; in pods, python3 of the image",
    )
    restarts: int = is_setting(
        *("int", 0, "number of restarts allowed after the code fails"),
        minimum=0,
        group=LIMITS,
        common=True,
    )
    node_restarts: int = is_setting(
        "int", 3, "number of lost nodes to tolerate", minimum=0, group=LIMITS
    )
    timeout_s: float | None = is_setting(
        *("duration", None, "time limit of the job, counted from its first start"),
        above=0,
        group=LIMITS,
        common=True,
    )
    grace_s: float = is_setting(
        "duration", 10.0, "time that ranks have between SIGTERM and SIGKILL", group=LIMITS
    )
    peer_wait_s: float = is_setting(
        *("duration", 60.0, "time that a finished rank keeps its connections open for the others"),
        group=LIMITS,
    )
    lease_s: float | None = is_setting(
        *("duration", None, "time that an attached job survives without its client"),
        group=LIMITS,
        unset="chosen by the engine: 5s on local, 5m in pods",
    )
    join_timeout_s: float | None = is_setting(
        *("duration", None, "time to wait for all nodes"),
        group=LIMITS,
        unset="chosen by the engine: 1m on local, 30m in pods",
    )
    image: str = is_setting(
        *("str", "", "container image of the pods, with Python and torch"),
        group=PODS,
        unset="the pytorch/pytorch image that matches the local torch",
        common=True,
    )
    in_image: bool = is_setting(
        "bool", False, "run a target that is part of the image, and upload no code", group=PODS
    )
    context: str = is_setting(
        "str", "", "kubeconfig context", group=PODS, unset="the current context"
    )
    namespace: str = is_setting(
        *("str", "", "namespace of the pods"),
        group=PODS,
        unset="the namespace of the context",
        common=True,
    )
    cpus: str = is_setting("quantity", "", "CPUs per node, such as 4 or 500m", group=RESOURCES)
    memory: str = is_setting("quantity", "", "memory per node, such as 512Gi", group=RESOURCES)
    ephemeral_storage: str = is_setting(
        "quantity", "", "scratch disk per node, such as 100Gi", group=RESOURCES
    )
    shm: str = is_setting(
        "quantity", "", "size of /dev/shm", group=RESOURCES, unset="half of the memory"
    )
    requests: Mapping[str, str] = is_setting(
        *("table", {}, "request below the limit, for cpus, memory or ephemeral_storage"),
        group=RESOURCES,
        spelled="request",
    )
    gpu_type: str = is_setting(
        "str",
        "",
        "required value of the node label gpu_label, where A|B allows either",
        group=RESOURCES,
    )
    gpu_label: str = is_setting(
        *("str", "nvidia.com/gpu.product", "node label that names the GPU type"), group=RESOURCES
    )
    gpu_resource: str = is_setting(
        "str", "nvidia.com/gpu", "resource name under which GPUs are requested", group=RESOURCES
    )
    node_selector: Mapping[str, str] = is_setting(
        "table", {}, "labels that nodes must have, where A|B allows either value", group=PLACEMENT
    )
    tolerations: tuple[str, ...] = is_setting(
        *("many", (), "taints to tolerate: KEY, KEY=VALUE or KEY=VALUE:EFFECT"),
        group=PLACEMENT,
        spelled="toleration",
    )
    spread: str = is_setting(
        *("str", "soft", "put pods on different hosts: preferred, required or not at all"),
        choices=("soft", "hard", "none"),
        group=PLACEMENT,
    )
    pack: str = is_setting(
        *("str", "", "label that all nodes of the job share, such as topology.kubernetes.io/zone"),
        group=PLACEMENT,
    )
    priority_class: str = is_setting("str", "", "priority class of the pods", group=PLACEMENT)
    queue: str = is_setting("str", "", "Kueue queue", group=PLACEMENT)
    runtime: str = is_setting(
        *("str", "", "TrainingRuntime that a TrainJob is made from"),
        group=PODS,
        unset="torch-distributed",
    )
    service_account: str = is_setting("str", "", "service account of the pods", group=PODS)
    run_as: int | None = is_setting(
        *("int", 1000, "user ID of the pods, or 'none' for that of the image"),
        minimum=0,
        optional=True,
        group=PODS,
    )
    pull_secrets: tuple[str, ...] = is_setting(
        "many", (), "Secrets for pulling images", group=STORAGE, spelled="pull-secret"
    )
    secrets: tuple[str, ...] = is_setting(
        *("many", (), "Secrets to pass on: NAME, VAR=NAME:KEY or NAME:/folder"),
        group=STORAGE,
        spelled="secret",
    )
    volumes: tuple[str, ...] = is_setting(
        *(
            "many",
            (),
            (
                "volumes to mount: CLAIM:/path, new:10Gi:/path[:RWX][:CLASS] (deleted with the job), "
                "emptydir[:5Gi]:/path"
            ),
        ),
        group=STORAGE,
        spelled="volume",
    )
    allow_host_path: bool = is_setting(
        "bool", False, "allow volumes that are folders of the host", group=STORAGE
    )
    mesh_name: str = is_setting(
        *("str", "", "name of the Monarch mesh that the pods form"),
        group=PODS,
        unset="the job ID without dashes",
    )
    open_mesh: bool = is_setting(
        *("bool", False, "let all pods of the namespace use the Monarch mesh, without TLS"),
        group=PODS,
    )
    labels: Mapping[str, str] = is_setting(
        "table", {}, "labels to add to the pods", group=PODS, spelled="label"
    )
    annotations: Mapping[str, str] = is_setting(
        "table", {}, "annotations to add to the pods", group=PODS, spelled="annotation"
    )
    ttl_s: float | None = is_setting(
        *(
            "duration",
            86400.0,
            "time to keep an ended job, or 'none' to keep it until you remove it",
        ),
        optional=True,
        group=PODS,
    )
    patch: str | Mapping[str, Any] | None = is_setting(
        "patch", None, "YAML, or a YAML file, to merge into the pod template", group=PODS
    )
    rdzv_backend: str = is_setting(
        *("str", "c10d", "rendezvous backend of torchrun, where etcd means etcd-v2"),
        choices=("c10d", "etcd", "etcd-v2"),
        group=EXPORT,
    )
    rdzv_endpoint: str = is_setting(
        *("str", "", "rendezvous endpoint, as HOST:PORT"),
        group=EXPORT,
        unset="the first pod, port 29500",
    )
    home: str = is_setting(
        "path", state_home, "folder for jobs and their logs", unset="~/.local/state/windlass"
    )
    origins: Mapping[str, str] = field(repr=False)

    def value(self, name: str) -> Any:
        return getattr(self, find_setting(name).name)

    def __getitem__(self, name: str) -> Any:
        return self.value(name)

    def origin(self, name: str) -> str:
        """Return the source, such as "flag --nodes", "environment WINDLASS_NODES" or "default".

        For a value from a file, the source is the path of that file.
        """
        return self.origins[find_setting(name).name]

    def items(self) -> Iterator[tuple[str, Any]]:
        return ((setting.name, getattr(self, setting.name)) for setting in SETTINGS)


SETTINGS = tuple(Setting(name=f.name, **f.metadata) for f in fields(Settings) if f.metadata)
BY_NAME = {setting.name: setting for setting in SETTINGS}


def find_setting(name: str) -> Setting:
    if name not in BY_NAME:
        raise SpecError(f"unknown setting {name!r}", hint=did_you_mean(name, BY_NAME, show=repr))
    return BY_NAME[name]
