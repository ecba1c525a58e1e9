"""Plan: everything that is decided about a job before it starts, including the ranks of each node.

Also creates the environment variables of each rank. Performs no I/O: `make_plan` takes the job id, the time
and facts about the engine as arguments. Engines write the plan, and agents read it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from windlass import names, records
from windlass.errors import ProtocolError
from windlass.spec.work import Calls, Command, Work

if TYPE_CHECKING:
    from windlass.spec.job_spec import JobSpec
    from windlass.spec.node_resources import NodeSizes
    from windlass.spec.pod_spec import PodSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """One node: its index, its stable name and its ranks."""

    index: int
    name: str
    first_rank: int
    num_ranks: int

    @property
    def ranks(self) -> range:
        return range(self.first_rank, self.first_rank + self.num_ranks)


def make_nodes(
    num_nodes: int, num_procs: int, *, job_name: str, only_first: bool = False
) -> tuple[NodePlan, ...]:
    """Return the nodes. Node i runs the ranks from i*num_procs to (i+1)*num_procs - 1.

    A node keeps its name for the whole job. With `only_first`, only node 0 has ranks, and the other nodes
    serve them.
    """
    return tuple(
        NodePlan(
            index=index,
            name=f"{job_name}-node-{index}",
            first_rank=num_procs if only_first and index else index * num_procs,
            num_ranks=0 if only_first and index else num_procs,
        )
        for index in range(num_nodes)
    )


def renumber(nodes: Iterable[NodePlan]) -> tuple[NodePlan, ...]:
    """Return the nodes with ranks renumbered from 0, for an attempt on some nodes only."""
    renumbered: list[NodePlan] = []
    for node in nodes:
        first_rank = renumbered[-1].ranks.stop if renumbered else 0
        renumbered.append(replace(node, first_rank=first_rank))
    return tuple(renumbered)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about the engine that planning needs."""

    environ: Mapping[str, str]  # the environment that nodes start with
    env: Mapping[str, str] = field(default_factory=dict)  # the engine's default variables
    master_addr: str | None = None  # None if the lead finds it
    master_port: int = 0  # preferred rendezvous port of ranks, or 0 for any
    replaces_nodes: bool = False  # the engine replaces lost nodes
    code_folder: str = (
        ""  # the project's folder on the nodes, or empty if it is the client's folder
    )
    jobs_folder: str = ""  # the folder of all job folders on the nodes, if known
    lease_s: float = 5.0  # the engine's default
    join_timeout_s: float = 60.0  # the engine's default


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A file that every node needs before its ranks start: the payload or the bundle."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Plan of one job."""

    version: int
    job_id: str
    name: str
    engine: str
    created_at_s: float
    work: Work
    nodes: tuple[NodePlan, ...]
    env: Mapping[str, str]
    cwd: str
    paths: tuple[str, ...]
    python: str
    start: str
    preload: tuple[str, ...]
    restarts: int
    timeout_s: float | None
    grace_s: float
    peer_wait_s: float
    lease_s: float
    join_timeout_s: float
    detach: bool
    master_addr: str | None
    master_port: int
    min_nodes: int
    node_restarts: int
    inputs: tuple[Input, ...] = ()
    pod: PodSpec | None = None  # if nodes are pods
    framework: str = "pytorch"
    python_minor: str = ""  # such as "3.12", if the payload holds code that needs this version
    sizes: NodeSizes | None = None  # if the framework counts resources itself

    @property
    def num_ranks(self) -> int:
        return sum(node.num_ranks for node in self.nodes)

    def node_of(self, rank: int) -> NodePlan:
        return next(node for node in self.nodes if rank in node.ranks)

    def on_nodes(self, indexes: Collection[int]) -> Plan:
        """Return the plan with only some of its nodes, and ranks numbered from 0."""
        present = [node for node in self.nodes if node.index in indexes]
        return self if len(present) == len(self.nodes) else replace(self, nodes=renumber(present))

    def with_nodes(self, nodes: Iterable[NodePlan]) -> Plan:
        """Return the plan with other nodes, or with other ranks on them."""
        return replace(self, nodes=tuple(nodes))


def make_plan(
    spec: JobSpec,
    *,
    job_id: str,
    now_s: float,
    facts: Facts,
    inputs: tuple[Input, ...] = (),
    python_minor: str = "",
) -> Plan:
    """Decide everything that can be decided before a node exists."""
    name = spec.name or job_id
    return Plan(
        version=names.PROTOCOL_VERSION,
        job_id=job_id,
        name=name,
        engine=spec.engine,
        created_at_s=now_s,
        work=spec.work,
        nodes=make_nodes(spec.nodes, spec.procs, job_name=name, only_first=spec.only_first),
        env=make_job_env(
            spec,
            job_id=job_id,
            name=name,
            facts_env={**facts.env, **_make_output_env(facts, job_id)},
            environ=facts.environ,
        ),
        cwd=spec.cwd,
        paths=spec.paths,
        python=spec.python,
        start=spec.start,
        preload=spec.preload,
        restarts=spec.restarts,
        timeout_s=spec.timeout_s,
        grace_s=spec.grace_s,
        peer_wait_s=spec.peer_wait_s,
        lease_s=facts.lease_s if spec.lease_s is None else spec.lease_s,
        join_timeout_s=(
            facts.join_timeout_s if spec.join_timeout_s is None else spec.join_timeout_s
        ),
        detach=spec.detach,
        master_addr=facts.master_addr,
        master_port=facts.master_port,
        min_nodes=spec.min_nodes or spec.nodes,
        node_restarts=spec.node_restarts if facts.replaces_nodes else 0,
        inputs=inputs,
        pod=spec.pod,
        framework=spec.framework or spec.work.framework,
        python_minor=python_minor,
        sizes=spec.sizes,
    )


def _make_output_env(facts: Facts, job_id: str) -> dict[str, str]:
    return (
        {names.OUT: f"{facts.jobs_folder}/{job_id}/{names.OUT_FOLDER}"} if facts.jobs_folder else {}
    )


def render_plan(plan: Plan) -> str:
    """Return the plan as JSON for the agents."""
    return json.dumps(records.to_json(plan), indent=1, sort_keys=True)


def read_plan(text: str) -> Plan:
    """Return the plan in JSON. Raise ProtocolError if it is malformed or of another version."""
    try:
        data = json.loads(text)
        version = data["version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ProtocolError(f"this is not a plan: {error}") from error
    if version != names.PROTOCOL_VERSION:
        raise ProtocolError(
            f"the plan has version {version}, but this Windlass reads version {names.PROTOCOL_VERSION}",
            hint="use the same version of Windlass to submit and to read",
        )
    return records.read(Plan, data)


_NPROC = re.compile(r"--nproc[-_]per[-_]node[= ]([0-9]+)(?![^ ])")
_BACKEND = re.compile(r"--rdzv[-_]backend[= ]")
_ENDPOINT = re.compile(r"--rdzv[-_]endpoint[= ]")
_STANDALONE = re.compile(r"--standalone(?![^ ])")


def make_job_env(
    spec: JobSpec,
    *,
    job_id: str,
    name: str,
    facts_env: Mapping[str, str],
    environ: Mapping[str, str],
) -> dict[str, str]:
    """Return the variables that are the same on every rank. The user's take precedence."""
    env = {
        names.JOB_ID: job_id,
        names.JOB_NAME: name,
        names.TORCHELASTIC_RUN_ID: job_id,
        names.TORCHELASTIC_MAX_RESTARTS: str(spec.restarts),
        names.TORCHELASTIC_SIGNALS_TO_HANDLE: "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        names.GRACE: f"{spec.grace_s:g}",
    }
    defaults = {names.TORCH_NCCL_ASYNC_ERROR_HANDLING: "1", **facts_env}
    if spec.procs > 1:
        defaults[names.OMP_NUM_THREADS] = "1"
    if isinstance(spec.work, Command):
        defaults[names.NPROC_PER_NODE] = str(count_procs(spec.work, spec))
        if spec.work.procs:
            defaults[names.PET_NPROC_PER_NODE] = str(spec.work.procs)
    env.update({key: value for key, value in defaults.items() if key not in environ})
    return {**env, **spec.env}


def count_procs(work: Command, spec: JobSpec) -> int:
    """Return how many processes a command starts per node.

    In order of precedence: the command's `procs`, one per GPU, its `--nproc-per-node`, and `spec.procs`.
    """
    if work.procs:
        return work.procs
    gpus = spec.pod.gpus if spec.pod else 0
    stated = _NPROC.search(work.label)
    return gpus or (int(stated[1]) if stated else spec.procs)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRendezvous:
    """Rendezvous of the ranks of one attempt."""

    address: str
    port: int
    has_store: bool = False  # the store is already open, so rank 0 does not open it
    secret: str = ""  # secret that ranks present to the store, if it requires one
    members: tuple[str, ...] = ()  # addresses of a cluster's nodes


def make_rank_env(
    plan: Plan, rank: int, *, attempt: int, rendezvous: RankRendezvous
) -> dict[str, str]:
    """Return the variables of one rank in one attempt."""
    node = plan.node_of(rank)
    world_size = str(plan.num_ranks)
    return {
        names.RANK: str(rank),
        names.LOCAL_RANK: str(rank - node.first_rank),
        names.WORLD_SIZE: world_size,
        names.LOCAL_WORLD_SIZE: str(node.num_ranks),
        names.GROUP_RANK: str(plan.nodes.index(node)),
        names.GROUP_WORLD_SIZE: str(len(plan.nodes)),
        names.ROLE_NAME: "default",
        names.ROLE_RANK: str(rank),
        names.ROLE_WORLD_SIZE: world_size,
        **make_rendezvous_env(rendezvous),
        names.TORCHELASTIC_RESTART_COUNT: str(attempt),
        names.NODE_NAME: node.name,
        names.NODE_INDEXES: render_indexes([node.index for node in plan.nodes]),
        names.ATTEMPT: str(attempt),
    }


def make_rendezvous_env(rendezvous: RankRendezvous) -> dict[str, str]:
    """Return the rendezvous of ranks as torchrun's variables."""
    return {
        names.MASTER_ADDR: rendezvous.address,
        names.MASTER_PORT: str(rendezvous.port),
        names.TORCHELASTIC_USE_AGENT_STORE: str(rendezvous.has_store),
    }


def make_command_env(plan: Plan, rank: int, rendezvous: RankRendezvous) -> dict[str, str]:
    """Return the variables with which a plain `torchrun train.py` on every node forms one world.

    With `--standalone`, return only the number of nodes and the node's rank. Return nothing for calls,
    which set these variables themselves. The user's variables take precedence.
    """
    if isinstance(plan.work, Calls):
        return {}
    label = plan.work.label
    num_nodes, node = str(len(plan.nodes)), str(plan.nodes.index(plan.node_of(rank)))
    env = {names.NNODES: num_nodes, names.NODE_RANK: node}
    if not _STANDALONE.search(label):
        if _BACKEND.search(label) and not _ENDPOINT.search(label):
            env[names.PET_RDZV_ENDPOINT] = f"{rendezvous.address}:{rendezvous.port}"
        env |= {
            names.PET_NNODES: num_nodes,
            names.PET_NODE_RANK: node,
            names.PET_MASTER_ADDR: rendezvous.address,
            names.PET_MASTER_PORT: str(rendezvous.port),
        }
    return {key: value for key, value in env.items() if key not in plan.env}


def render_indexes(indexes: list[int]) -> str:
    """Return an attempt's nodes as a short text: their number if none is missing, otherwise their indexes."""
    if indexes == list(range(len(indexes))):
        return str(len(indexes))
    return ",".join(["", *map(str, indexes)])


def read_indexes(text: str) -> list[int]:
    """Parse a text that `render_indexes` returned. Raise ValueError if it is malformed."""
    first, *rest = text.split(",")
    return [int(index) for index in rest] if rest else list(range(int(first)))
