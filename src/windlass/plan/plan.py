"""Plan: everything that is decided about a job before it starts, and which node has which ranks.

Pure: make_plan takes the id, the time and facts of the engine as arguments. Engines render it, agents read
it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from windlass import names, records
from windlass.errors import ProtocolError
from windlass.plan.rank_env import make_job_env
from windlass.spec.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """One node: its place, its stable name and the ranks it runs."""

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
    """Node i runs ranks i*procs to (i+1)*procs - 1 and keeps its name for the whole job.

    With `only_first` the others run none: they serve those of node 0.
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
    """The ranks of an attempt on some of the nodes only: counted anew, in the order of the nodes."""
    renumbered: list[NodePlan] = []
    for node in nodes:
        first_rank = renumbered[-1].ranks.stop if renumbered else 0
        renumbered.append(replace(node, first_rank=first_rank))
    return tuple(renumbered)


if TYPE_CHECKING:
    from windlass.spec.job_spec import JobSpec
    from windlass.spec.node_resources import NodeSizes
    from windlass.spec.pod_spec import PodSpec
else:
    PodSpec = NodeSizes = Any  # loaded only where a plan has one: `read_plan`


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What planning must know of the world: handed in, never looked up."""

    environ: Mapping[str, str]  # the environment the nodes will start with
    env: Mapping[str, str] = field(
        default_factory=dict
    )  # what the engine adds unless it is set already
    master_addr: str | None = None  # None: the lead finds it out
    master_port: int = 0  # the port ranks should meet at if it is free; 0: any
    replaces_nodes: bool = False  # whether a lost node comes back
    code_folder: str = ""  # where the project lies on the nodes; empty: where it lies here
    jobs_folder: str = ""  # where each job has a folder, if it is known here
    lease_s: float = 5.0  # unless asked otherwise
    join_timeout_s: float = 60.0  # likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A file that every node must have before its ranks start: the payload, the bundle."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One job, decided."""

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
    pod: PodSpec | None = None  # where nodes are pods
    framework: str = "pytorch"
    python_minor: str = ""  # "3.12" where the payload holds code that only this one can run
    sizes: NodeSizes | None = None  # where the framework counts resources itself

    @property
    def num_ranks(self) -> int:
        return sum(node.num_ranks for node in self.nodes)

    def node_of(self, rank: int) -> NodePlan:
        return next(node for node in self.nodes if rank in node.ranks)

    def on_nodes(self, indexes: Collection[int]) -> Plan:
        """The same job on some of its nodes only, with ranks counted anew."""
        present = [node for node in self.nodes if node.index in indexes]
        return self if len(present) == len(self.nodes) else replace(self, nodes=renumber(present))

    def with_nodes(self, nodes: Iterable[NodePlan]) -> Plan:
        """The same on other nodes, or on others of their ranks."""
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
            facts_env={**facts.env, **_place_out(facts, job_id)},
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


def _place_out(facts: Facts, job_id: str) -> dict[str, str]:
    return (
        {names.OUT: f"{facts.jobs_folder}/{job_id}/{names.OUT_FOLDER}"} if facts.jobs_folder else {}
    )


def render_plan(plan: Plan) -> str:
    """The plan as JSON: what every agent reads."""
    return json.dumps(records.to_json(plan), indent=1, sort_keys=True)


def read_plan(text: str) -> Plan:
    """The plan from its JSON; a plan of another version is refused, not guessed at."""
    try:
        data = json.loads(text)
        version = data["version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ProtocolError(f"this is not a plan: {error}") from error
    if version != names.PROTOCOL_VERSION:
        raise ProtocolError(
            f"the plan is of version {version}, this Windlass reads version {names.PROTOCOL_VERSION}",
            hint="use the same version of Windlass for submitting and for reading",
        )
    plan = records.read(Plan, data)
    if plan.sizes is not None:
        plan = replace(plan, sizes=_read_sizes(plan.sizes))
    return plan if plan.pod is None else replace(plan, pod=_read_pod(plan.pod))


def _read_pod(data: Any) -> PodSpec:
    from windlass.spec.pod_spec import PodSpec

    return records.read(PodSpec, data)


def _read_sizes(data: Any) -> NodeSizes:
    from windlass.spec.node_resources import NodeSizes

    return records.read(NodeSizes, data)
