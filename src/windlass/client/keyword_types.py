"""The keywords of the public functions, for editors and type checkers only.

Written by `make api` from client/keywords.py and settings/table.py: change those instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict

from windlass.client.compute.resources.image import Image
from windlass.client.compute.resources.secret import Secret
from windlass.client.compute.resources.volume import Volume
from windlass.settings.table import NodeRange


class NodeKeywords(TypedDict, total=False):
    """Settings of the nodes of jobs, computes and apps."""

    pretend_gpus: bool
    """run without the GPUs that are asked for: as many ranks, on the CPU"""
    python: str
    """the nodes' interpreter; empty: this one, in pods the image's python3"""
    grace_s: float | str
    """how long ranks have between SIGTERM and SIGKILL"""
    peer_wait_s: float | str
    """how long a finished rank keeps its connections open for the others"""
    context: str
    """the kubeconfig context; empty: the current one"""
    namespace: str
    """where the pods run; empty: the context's own"""
    cpus: str | float
    """processors per node: 4, 500m"""
    memory: str | float
    """memory per node: 512Gi"""
    ephemeral_storage: str | float
    """scratch disk per node: 100Gi"""
    shm: str | float
    """size of /dev/shm; empty: half of the memory"""
    requests: Mapping[str, str | int]
    """request less than the limit: cpus, memory, ephemeral_storage"""
    gpu_type: str
    """the value of the nodes' gpu_label; A|B: either"""
    gpu_label: str
    """the node label that names the type of its GPUs"""
    gpu_resource: str
    """the resource that a GPU is requested as"""
    node_selector: Mapping[str, str | int]
    """labels the nodes must have; A|B: either"""
    spread: Literal["soft", "hard", "none"]
    """put a job's pods on different hosts: if possible, always, or not at all"""
    pack: str
    """a label that all nodes of the job share: topology.kubernetes.io/zone"""
    priority_class: str
    """the pods' priority class"""
    queue: str
    """the Kueue queue"""
    service_account: str
    """the service account that the pods use"""
    run_as: int | Literal["none"] | None
    """the pods' user id; none: the image's own"""
    pull_secrets: Sequence[str]
    """Secrets for pulling images"""
    mesh_name: str
    """the Monarch mesh that the pods are; empty: the job's id without dashes"""
    open_mesh: bool
    """let all pods of the namespace use the Monarch mesh, without TLS"""
    labels: Mapping[str, str | int]
    """labels of the pods"""
    annotations: Mapping[str, str | int]
    """annotations of the pods"""


class JobOrAppKeywords(TypedDict, total=False):
    """Settings of jobs and apps."""

    restarts: int
    """how often to start again when the code fails"""
    node_restarts: int
    """how often to go on after losing a node"""
    timeout_s: float | str | None
    """end the job this long after it first starts"""
    lease_s: float | str | None
    """how long a job outlives a client that went away; none: the engine's own"""
    join_timeout_s: float | str | None
    """how long to wait for all nodes; none: the engine's own"""
    runtime: str
    """the TrainingRuntime that a TrainJob is made from; default: torch-distributed"""
    allow_host_path: bool
    """allow volumes that are folders of the host"""
    ttl_s: float | str | None
    """how long an ended job is kept; none: until it is removed"""
    patch: str | PathLike[str] | Mapping[str, Any] | None
    """YAML to merge into the pods' template, or a file that holds it"""
    rdzv_endpoint: str
    """the rendezvous endpoint; empty: the first pod and port 29500"""
    home: str | PathLike[str] | None
    """the folder for jobs and their logs"""


class ComputeOrAppKeywords(TypedDict, total=False):
    """Keywords of computes and apps."""

    image: str | Image
    """the pods' image, and the steps that prepare it"""
    env: Mapping[str, object]
    """environment variables of every rank"""
    secrets: Sequence[Secret | str]
    """secrets for the ranks, as variables or files"""
    volumes: Sequence[Volume | str]
    """volumes that every node mounts"""
    tolerations: Sequence[str | Mapping[str, str]]
    """taints to tolerate: KEY, KEY=VALUE, KEY=VALUE:EFFECT, or tables as Kubernetes has them"""
    working_dir: str
    """the folder to run in, seen from the project's folder"""
    pod_patch: str | PathLike[str] | Mapping[str, Any] | None
    """YAML to merge into the pods' template, or a file that holds it"""
    root: str
    """the project's folder; empty: found from the code's"""


class JobKeywords(NodeKeywords, JobOrAppKeywords, total=False):
    """Keywords of `run` and `submit`."""

    engine: str
    """what provides the nodes"""
    nodes: int | str | NodeRange
    """how many nodes; MIN:MAX: at least and at most"""
    procs: int | None
    """ranks per node; none: one per GPU, else one"""
    gpus: int
    """GPUs per node"""
    framework: str
    """how the work is spread over ranks; empty: pytorch, or command for a command"""
    name: str
    """the job's name; empty: made from the work"""
    env: Mapping[str, str | int]
    """environment variables of every rank"""
    start: Literal["fork", "spawn"]
    """how ranks start"""
    preload: Sequence[str] | None
    """modules imported once, before ranks start; unset: torch, if the source leads to it"""
    image: str
    """the pods' image, with Python and torch in it; empty: PyTorch's own, of the torch here"""
    in_image: bool
    """the target is part of the image: no code is sent"""
    tolerations: Sequence[str]
    """taints to tolerate: KEY, KEY=VALUE, KEY=VALUE:EFFECT"""
    secrets: Sequence[str]
    """Secrets: NAME, VAR=NAME:KEY or NAME:/folder"""
    volumes: Sequence[str]
    """CLAIM:/path, new:10Gi:/path[:RWX][:CLASS] (ends with the job), emptydir[:5Gi]:/path"""
    rdzv_backend: Literal["c10d", "etcd", "etcd-v2"]
    """the rendezvous backend of torchrun; etcd means etcd-v2"""


class ComputeKeywords(NodeKeywords, ComputeOrAppKeywords, total=False):
    """Keywords of `Compute` and `@compute`."""

    name: str
    """the compute's name; empty: made from what is sent to it first"""
    engine: str
    """what provides the nodes; empty: a cluster if there is one, else local"""
    gpus: int
    """GPUs per node"""
    inactivity_ttl: float | str | None
    """end the nodes when nothing was called for this long; None: never"""
    launch_timeout: float | str
    """how long to wait for the nodes"""
    preload: Sequence[str] | None
    """modules imported once, before ranks start; unset: torch, if the source leads to it"""
    start: Literal["fork", "spawn"]
    """how ranks start"""
    procs: int | None
    """ranks per node; none: one per GPU, else one"""


class AppKeywords(NodeKeywords, JobOrAppKeywords, ComputeOrAppKeywords, total=False):
    """Keywords of `app` beside its own parameters."""

    launch_timeout: float | str | None
    """how long to wait for all nodes; none: the engine's own"""


class CallKeywords(TypedDict, total=False):
    """Keywords of `fn`, `cls` and `.options`."""

    timeout: float | str | None
    """end a call after so long: seconds, or text like 5m"""
    stream: bool
    """a call returns an iterator of what a generator yields on rank 0"""
    collect: Literal["all", "head"]
    """whose values return: every rank's, or rank 0's"""
    ranks: int | Iterable[int] | None
    """the ranks that run the call; None: all"""
    keep: Literal["", "process"]
    """process: ranks stay, with what they hold; empty: fresh ones for each call"""
    reload: Literal["auto", "never"]
    """auto: changed code is sent before a call; never: ranks keep the code they have"""
    logs: bool
    """show what ranks print"""


class OtherDistributeKeywords(TypedDict, total=False):
    """Keywords of `.distribute` beside its own parameters."""

    worker_node_options: Mapping[str, str | float] | None
    """with ray, what each worker has: cpus, gpus, memory; None: what the head has"""
    num_workers: int | str
    """the same as workers"""
    replicas: int | str
    """the same as workers"""
    nodes: int | str
    """the same as workers"""
    num_proc: int | None
    """the same as procs"""
    procs_per_worker: int | None
    """the same as procs"""
    nproc_per_node: int | None
    """the same as procs"""


class DistributeKeywords(OtherDistributeKeywords, total=False):
    """Keywords of `@distribute`."""

    framework: str
    """how ranks are set up: pytorch, spmd, ray, monarch or command; empty: the setting, else pytorch"""
    workers: int | str
    """how many nodes, with ray beside the head; "2:4": at least 2, at most 4"""
    procs: int | None
    """ranks per node; None: one per GPU, else one"""
