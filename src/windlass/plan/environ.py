"""The environment of ranks: what torchrun sets, by the same rules, plus a few names of ours.

Pure. Job-wide variables are set before the fork server imports anything, since libraries read them
when they load; a rank's own are set right after its fork, before any user import.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windlass import names

if TYPE_CHECKING:
    from windlass.plan.plan import Plan
    from windlass.spec.job import JobSpec


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
    }
    defaults = {names.TORCH_NCCL_ASYNC_ERROR_HANDLING: "1", **facts_env}
    if spec.procs > 1:
        defaults[names.OMP_NUM_THREADS] = "1"
    env.update({key: value for key, value in defaults.items() if key not in environ})
    return {**env, **spec.env}


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where the ranks of one attempt find each other."""

    address: str
    port: int
    has_store: bool = False  # a store is there already; else rank 0 opens it


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
        names.MASTER_ADDR: meeting.address,
        names.MASTER_PORT: str(meeting.port),
        names.TORCHELASTIC_RESTART_COUNT: str(attempt),
        names.TORCHELASTIC_USE_AGENT_STORE: str(meeting.has_store),
        names.NODE_NAME: node.name,
        names.ATTEMPT: str(attempt),
    }
