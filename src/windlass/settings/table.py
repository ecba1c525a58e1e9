"""The table of settings: each with its name, flag, variable, type, default and help.

Setting is the record, SETTINGS the table, Settings the values. Defaults below the user's home follow the XDG
directories. Knows nothing of files or of the environment; `settings.reading` reads them.
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


PODS = "On Kubernetes"
EXPORT = "Exports without Windlass"


def place(environ: Mapping[str, str], variable: str, fallback: str) -> Path:
    from pathlib import Path

    # The XDG specification: a relative path there is invalid and must be ignored.
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
    """The fewest and the most nodes: `MIN:MAX`."""

    min: int
    max: int

    def __str__(self) -> str:
        return f"{self.min}:{self.max}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One line of the table: what may be set, and within which bounds."""

    name: str
    kind: str
    default: object
    help: str
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    above: float | None = None
    group: str = ""  # the heading it stands under in --help
    spelt: str = ""  # the flag, where it is not made from the name
    optional: bool = False  # "none" is a value of its own

    @property
    def flag(self) -> str:
        """The flag that sets it; a time's flag drops the unit: `--timeout` sets `timeout_s`."""
        return "--" + (self.spelt or self.name.removesuffix("_s").replace("_", "-"))

    @property
    def variable(self) -> str:
        """The variable that sets it; empty for a table, which has no good form in one variable."""
        return "" if self.kind == "table" else "WINDLASS_" + self.name.upper()

    @property
    def hint(self) -> str:
        """What it is for, and what it is when it is left out."""
        has_default = not callable(self.default) and self.default not in (None, "", {}, (), False)
        return f"{self.help}; {self.default} if left out" if has_default else self.help

    @property
    def may_be_none(self) -> bool:
        return self.optional or self.default is None

    def default_in(self, environ: Mapping[str, str]) -> object:
        return self.default(environ) if callable(self.default) else self.default


def is_setting(
    kind: str, default: object | Callable[[Mapping[str, str]], object], text: str, **limits: object
) -> Any:
    return field(metadata={"kind": kind, "default": default, "help": text, **limits})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting's value, and where it came from."""

    engine: str = is_setting("str", "local", "what provides the nodes")
    nodes: int | NodeRange = is_setting(  # noqa: RUF009
        "nodes", 1, "how many nodes; MIN:MAX: at least and at most", minimum=1
    )
    procs: int | None = is_setting(
        "int", None, "ranks per node; none: one per GPU, else one", minimum=1
    )
    gpus: int = is_setting("int", 0, "GPUs per node", minimum=0)
    pretend_gpus: bool = is_setting(
        "bool", False, "run without the GPUs that are asked for: as many ranks, on the CPU"
    )
    framework: str = is_setting(
        "str", "", "how the work is spread over ranks; empty: pytorch, or command for a command"
    )
    name: str = is_setting("str", "", "the job's name; empty: made from the work")
    env: Mapping[str, str] = is_setting("table", {}, "environment variables of every rank")
    start: str = is_setting("str", "fork", "how ranks start", choices=("fork", "spawn"))
    preload: tuple[str, ...] | None = is_setting(
        "list",
        None,
        "modules imported once, before ranks start; unset: torch, if the source leads to it",
    )
    python: str = is_setting(
        "str", "", "the nodes' interpreter; empty: this one, in pods the image's python3"
    )
    restarts: int = is_setting("int", 0, "how often to start again when the code fails", minimum=0)
    node_restarts: int = is_setting("int", 3, "how often to go on after losing a node", minimum=0)
    timeout_s: float | None = is_setting(
        "duration", None, "end the job this long after it first starts", above=0
    )
    grace_s: float = is_setting("duration", 10.0, "how long ranks have between SIGTERM and SIGKILL")
    peer_wait_s: float = is_setting(
        "duration", 60.0, "how long a finished rank keeps its connections open for the others"
    )
    lease_s: float | None = is_setting(
        "duration", None, "how long a job outlives a client that went away; none: the engine's own"
    )
    join_timeout_s: float | None = is_setting(
        "duration", None, "how long to wait for all nodes; none: the engine's own"
    )
    image: str = is_setting(
        "str",
        "",
        "the pods' image, with Python and torch in it; empty: PyTorch's own, of the torch here",
        group=PODS,
    )
    in_image: bool = is_setting(
        "bool", False, "the target is part of the image: no code is sent", group=PODS
    )
    context: str = is_setting(
        "str", "", "the kubeconfig context; empty: the current one", group=PODS
    )
    namespace: str = is_setting(
        "str", "", "where the pods run; empty: the context's own", group=PODS
    )
    cpus: str = is_setting("quantity", "", "processors per node: 4, 500m", group=PODS)
    memory: str = is_setting("quantity", "", "memory per node: 512Gi", group=PODS)
    ephemeral_storage: str = is_setting("quantity", "", "scratch disk per node: 100Gi", group=PODS)
    shm: str = is_setting("quantity", "", "size of /dev/shm; empty: half of the memory", group=PODS)
    requests: Mapping[str, str] = is_setting(
        *("table", {}, "request less than the limit: cpus, memory, ephemeral_storage"),
        group=PODS,
        spelt="request",
    )
    gpu_type: str = is_setting(
        "str", "", "the value of the nodes' gpu_label; A|B: either", group=PODS
    )
    gpu_label: str = is_setting(
        "str",
        "nvidia.com/gpu.product",
        "the node label that names the type of its GPUs",
        group=PODS,
    )
    gpu_resource: str = is_setting(
        "str", "nvidia.com/gpu", "the resource that a GPU is requested as", group=PODS
    )
    node_selector: Mapping[str, str] = is_setting(
        "table", {}, "labels the nodes must have; A|B: either", group=PODS
    )
    tolerations: tuple[str, ...] = is_setting(
        *("many", (), "taints to tolerate: KEY, KEY=VALUE, KEY=VALUE:EFFECT"),
        group=PODS,
        spelt="toleration",
    )
    spread: str = is_setting(
        *("str", "soft", "put a job's pods on different hosts: if possible, always, or not at all"),
        choices=("soft", "hard", "none"),
        group=PODS,
    )
    pack: str = is_setting(
        *("str", "", "a label that all nodes of the job share: topology.kubernetes.io/zone"),
        group=PODS,
    )
    priority_class: str = is_setting("str", "", "the pods' priority class", group=PODS)
    queue: str = is_setting("str", "", "the Kueue queue", group=PODS)
    runtime: str = is_setting(
        *(
            "str",
            "",
            "the TrainingRuntime that a TrainJob is made from; default: torch-distributed",
        ),
        group=PODS,
    )
    service_account: str = is_setting(
        "str", "", "the service account that the pods use", group=PODS
    )
    run_as: int | None = is_setting(
        "int",
        1000,
        "the pods' user id; none: the image's own",
        minimum=0,
        optional=True,
        group=PODS,
    )
    pull_secrets: tuple[str, ...] = is_setting(
        "many", (), "Secrets for pulling images", group=PODS, spelt="pull-secret"
    )
    secrets: tuple[str, ...] = is_setting(
        *("many", (), "Secrets: NAME, VAR=NAME:KEY or NAME:/folder"), group=PODS, spelt="secret"
    )
    volumes: tuple[str, ...] = is_setting(
        *(
            "many",
            (),
            "CLAIM:/path, new:10Gi:/path[:RWX][:CLASS] (ends with the job), emptydir[:5Gi]:/path",
        ),
        group=PODS,
        spelt="volume",
    )
    allow_host_path: bool = is_setting(
        "bool", False, "allow volumes that are folders of the host", group=PODS
    )
    mesh_name: str = is_setting(
        *("str", "", "the Monarch mesh that the pods are; empty: the job's id without dashes"),
        group=PODS,
    )
    open_mesh: bool = is_setting(
        *("bool", False, "let all pods of the namespace use the Monarch mesh, without TLS"),
        group=PODS,
    )
    labels: Mapping[str, str] = is_setting(
        "table", {}, "labels of the pods", group=PODS, spelt="label"
    )
    annotations: Mapping[str, str] = is_setting(
        "table", {}, "annotations of the pods", group=PODS, spelt="annotation"
    )
    ttl_s: float | None = is_setting(
        *("duration", 86400.0, "how long an ended job is kept; none: until it is removed"),
        optional=True,
        group=PODS,
    )
    patch: str | Mapping[str, Any] | None = is_setting(
        "patch", None, "YAML to merge into the pods' template, or a file that holds it", group=PODS
    )
    rdzv_backend: str = is_setting(
        *("str", "c10d", "the rendezvous backend of torchrun; etcd means etcd-v2"),
        choices=("c10d", "etcd", "etcd-v2"),
        group=EXPORT,
    )
    rdzv_endpoint: str = is_setting(
        "str", "", "the rendezvous endpoint; empty: the first pod and port 29500", group=EXPORT
    )
    home: str = is_setting("path", state_home, "the folder for jobs and their logs")
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
