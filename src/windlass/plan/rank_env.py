"""The environment of ranks: what torchrun sets, by the same rules, plus a few names of ours.

Pure. Job-wide variables are set before the fork server imports anything, since libraries read them
when they load; a rank's own are set right after its fork, before any user import.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windlass import names
from windlass.spec.work import Calls, Command

if TYPE_CHECKING:
    from windlass.plan.plan import Plan
    from windlass.spec.job_spec import JobSpec

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
    """Variables that are the same on every rank; the user's own always win."""
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
    """How many processes a command should start on a node: one a GPU, else what it says itself."""
    if work.procs:
        return work.procs
    gpus = spec.pod.gpus if spec.pod else 0
    said = _NPROC.search(work.label)
    return gpus or (int(said[1]) if said else spec.procs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where the ranks of one attempt find each other."""

    address: str
    port: int
    has_store: bool = False  # a store is there already; else rank 0 opens it
    secret: str = ""  # that lets a rank in, where the store asks for one
    members: tuple[str, ...] = ()  # addresses of a cluster's nodes


def make_rank_env(plan: Plan, rank: int, *, attempt: int, meeting: Meeting) -> dict[str, str]:
    """Variables of one rank in one attempt."""
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
        **make_meeting_env(meeting),
        names.TORCHELASTIC_RESTART_COUNT: str(attempt),
        names.NODE_NAME: node.name,
        names.NODE_INDEXES: render_indexes([node.index for node in plan.nodes]),
        names.ATTEMPT: str(attempt),
    }


def make_meeting_env(meeting: Meeting) -> dict[str, str]:
    """Where ranks find each other, in torchrun's variables."""
    return {
        names.MASTER_ADDR: meeting.address,
        names.MASTER_PORT: str(meeting.port),
        names.TORCHELASTIC_USE_AGENT_STORE: str(meeting.has_store),
    }


def make_command_env(plan: Plan, rank: int, meeting: Meeting) -> dict[str, str]:
    """What lets a bare `torchrun train.py` on every node form one world, unless it wants none.

    Nothing for calls, which bring it themselves. The user's own variables win.
    """
    if isinstance(plan.work, Calls):
        return {}
    label = plan.work.label
    num_nodes, node = str(len(plan.nodes)), str(plan.nodes.index(plan.node_of(rank)))
    env = {names.NNODES: num_nodes, names.NODE_RANK: node}
    if not _STANDALONE.search(label):
        if _BACKEND.search(label) and not _ENDPOINT.search(label):
            env[names.PET_RDZV_ENDPOINT] = f"{meeting.address}:{meeting.port}"
        env |= {
            names.PET_NNODES: num_nodes,
            names.PET_NODE_RANK: node,
            names.PET_MASTER_ADDR: meeting.address,
            names.PET_MASTER_PORT: str(meeting.port),
        }
    return {key: value for key, value in env.items() if key not in plan.env}


def render_indexes(indexes: list[int]) -> str:
    """The nodes of an attempt in few letters: how many where all are there, else which."""
    if indexes == list(range(len(indexes))):
        return str(len(indexes))
    return ",".join(["", *map(str, indexes)])


def read_indexes(text: str) -> list[int]:
    """The indexes that were rendered; ValueError when they were not."""
    first, *rest = text.split(",")
    return [int(index) for index in rest] if rest else list(range(int(first)))
