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
    """run on the CPU, with as many ranks as GPUs are requested"""
    python: str
    """Python interpreter of the nodes (default: this interpreter; in pods, python3 of the image)"""
    grace_s: float | str
    """time that ranks have between SIGTERM and SIGKILL"""
    peer_wait_s: float | str
    """time that a finished rank keeps its connections open for the others"""
    context: str
    """kubeconfig context (default: the current context)"""
    namespace: str
    """namespace of the pods (default: the namespace of the context)"""
    cpus: str | float
    """CPUs per node, such as 4 or 500m"""
    memory: str | float
    """memory per node, such as 512Gi"""
    ephemeral_storage: str | float
    """scratch disk per node, such as 100Gi"""
    shm: str | float
    """size of /dev/shm (default: half of the memory)"""
    requests: Mapping[str, str | int]
    """request below the limit, for cpus, memory or ephemeral_storage"""
    gpu_type: str
    """required value of the node label gpu_label, where A|B allows either"""
    gpu_label: str
    """node label that names the GPU type"""
    gpu_resource: str
    """resource name under which GPUs are requested"""
    node_selector: Mapping[str, str | int]
    """labels that nodes must have, where A|B allows either value"""
    spread: Literal["soft", "hard", "none"]
    """put pods on different hosts: preferred, required or not at all"""
    pack: str
    """label that all nodes of the job share, such as topology.kubernetes.io/zone"""
    priority_class: str
    """priority class of the pods"""
    queue: str
    """Kueue queue"""
    service_account: str
    """service account of the pods"""
    run_as: int | Literal["none"] | None
    """user ID of the pods, or 'none' for that of the image"""
    pull_secrets: Sequence[str]
    """Secrets for pulling images"""
    mesh_name: str
    """name of the Monarch mesh that the pods form (default: the job ID without dashes)"""
    open_mesh: bool
    """let all pods of the namespace use the Monarch mesh, without TLS"""
    labels: Mapping[str, str | int]
    """labels to add to the pods"""
    annotations: Mapping[str, str | int]
    """annotations to add to the pods"""


class JobOrAppKeywords(TypedDict, total=False):
    """Settings of jobs and apps."""

    restarts: int
    """number of restarts allowed after the code fails"""
    node_restarts: int
    """number of lost nodes to tolerate"""
    timeout_s: float | str | None
    """time limit of the job, counted from its first start"""
    lease_s: float | str | None
    """time that an attached job survives without its client (default: chosen by the engine: 5s on local,
    5m in pods)"""
    join_timeout_s: float | str | None
    """time to wait for all nodes (default: chosen by the engine: 1m on local, 30m in pods)"""
    runtime: str
    """TrainingRuntime that a TrainJob is made from (default: torch-distributed)"""
    allow_host_path: bool
    """allow volumes that are folders of the host"""
    ttl_s: float | str | None
    """time to keep an ended job, or 'none' to keep it until you remove it"""
    patch: str | PathLike[str] | Mapping[str, Any] | None
    """YAML, or a YAML file, to merge into the pod template"""
    rdzv_endpoint: str
    """rendezvous endpoint, as HOST:PORT (default: the first pod, port 29500)"""
    home: str | PathLike[str] | None
    """folder for jobs and their logs (default: ~/.local/state/windlass)"""


class ComputeOrAppKeywords(TypedDict, total=False):
    """Keywords of computes and apps."""

    image: str | Image
    """image of the pods, with the steps that prepare it"""
    env: Mapping[str, object]
    """environment variables for every rank"""
    secrets: Sequence[Secret | str]
    """secrets for the ranks, as variables or files"""
    volumes: Sequence[Volume | str]
    """volumes that every node mounts"""
    tolerations: Sequence[str | Mapping[str, str]]
    """taints to tolerate: KEY, KEY=VALUE, KEY=VALUE:EFFECT, or tables like those of Kubernetes"""
    working_dir: str
    """folder to run in, relative to the project's folder"""
    pod_patch: str | PathLike[str] | Mapping[str, Any] | None
    """YAML, or a YAML file, to merge into the pod template"""
    root: str
    """folder of the project (default: found from the code)"""


class JobKeywords(NodeKeywords, JobOrAppKeywords, total=False):
    """Keywords of `run` and `submit`."""

    engine: str
    """engine that provides the nodes (see `windlass engines`)"""
    nodes: int | str | NodeRange
    """number of nodes, or a minimum and a maximum"""
    procs: int | None
    """ranks per node (default: one per GPU, or 1)"""
    gpus: int
    """GPUs per node"""
    framework: str
    """framework that sets up the ranks: pytorch, spmd, ray, monarch or command (default: pytorch, or
    command for a command)"""
    name: str
    """name of the job (default: made from the target)"""
    env: Mapping[str, str | int]
    """environment variables for every rank"""
    start: Literal["fork", "spawn"]
    """start ranks by forking a preloaded process, or in a new interpreter"""
    preload: Sequence[str] | None
    """modules to import once, before ranks are forked (default: torch, if the code imports it)"""
    image: str
    """container image of the pods, with Python and torch (default: the pytorch/pytorch image that matches
    the local torch)"""
    in_image: bool
    """run a target that is part of the image, and upload no code"""
    tolerations: Sequence[str]
    """taints to tolerate: KEY, KEY=VALUE or KEY=VALUE:EFFECT"""
    secrets: Sequence[str]
    """Secrets to pass on: NAME, VAR=NAME:KEY or NAME:/folder"""
    volumes: Sequence[str]
    """volumes to mount: CLAIM:/path, new:10Gi:/path[:RWX][:CLASS] (deleted with the job),
    emptydir[:5Gi]:/path"""
    rdzv_backend: Literal["c10d", "etcd", "etcd-v2"]
    """rendezvous backend of torchrun, where etcd means etcd-v2"""


class ComputeKeywords(NodeKeywords, ComputeOrAppKeywords, total=False):
    """Keywords of `Compute` and `@compute`."""

    name: str
    """name of the compute (default: made from the first function or class sent to it)"""
    engine: str
    """engine that provides the nodes (default: a cluster if there is one, or local)"""
    gpus: int
    """GPUs per node"""
    inactivity_ttl: float | str | None
    """end the nodes after this time without calls, or None to keep them"""
    launch_timeout: float | str
    """time to wait for the nodes"""
    preload: Sequence[str] | None
    """modules to import once, before ranks are forked (default: torch, if the code imports it)"""
    start: Literal["fork", "spawn"]
    """start ranks by forking a preloaded process, or in a new interpreter"""
    procs: int | None
    """ranks per node (default: one per GPU, or 1)"""


class AppKeywords(NodeKeywords, JobOrAppKeywords, ComputeOrAppKeywords, total=False):
    """Keywords of `app` beside its own parameters."""

    launch_timeout: float | str | None
    """time to wait for all nodes"""


class CallKeywords(TypedDict, total=False):
    """Keywords of `fn`, `cls` and `.options`."""

    timeout: float | str | None
    """end a call after this time, in seconds or as text like 5m"""
    stream: bool
    """return an iterator over what a generator yields on rank 0"""
    collect: Literal["all", "head"]
    """return the values of all ranks, or of rank 0"""
    ranks: int | Iterable[int] | None
    """ranks that run the call (default: all)"""
    keep: Literal["", "process"]
    """keep the ranks and their state with process (default: new ranks for each call)"""
    reload: Literal["auto", "never"]
    """send changed code before a call (auto), or keep the code of the ranks (never)"""
    logs: bool
    """show what ranks print"""


class OtherDistributeKeywords(TypedDict, total=False):
    """Keywords of `.distribute` beside its own parameters."""

    worker_node_options: Mapping[str, str | float] | None
    """cpus, gpus and memory of each worker, with ray (default: like the head)"""
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
    """framework that sets up the ranks: pytorch, spmd, ray, monarch or command (default: the setting, or
    pytorch)"""
    workers: int | str
    """number of nodes, with ray in addition to the head, or a range such as "2:4\""""
    procs: int | None
    """ranks per node (default: one per GPU, or 1)"""
