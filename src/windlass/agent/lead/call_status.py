"""A call as others see it: its status in the form of a job's, and what its ranks printed. Reads only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from windlass import names
from windlass.agent.lead.call_state import Call
from windlass.plan.plan import Plan
from windlass.wire.initial_status import make_ranks
from windlass.wire.job_folder import JobFolder
from windlass.wire.log_lines import number_node
from windlass.wire.states import CallState, RankState
from windlass.wire.status import Condition, JobStatus, Phase, RankStatus

_PHASES = {
    CallState.QUEUED: Phase.PENDING,
    CallState.RUNNING: Phase.RUNNING,
    CallState.RETURNED: Phase.SUCCEEDED,
    CallState.FAILED: Phase.FAILED,
    CallState.CANCELLED: Phase.CANCELLED,
}


def make_call_status(call: Call, plan: Plan, ahead: int) -> JobStatus:
    """What is known of a call now; `ahead` calls have to end before it can start."""
    world = call.attempt.world if call.attempt else None
    asked = call.asked.world
    return JobStatus(
        job_id=call.id,
        name=call.asked.name,
        engine=plan.engine,
        work=call.asked.name,
        phase=_PHASES[call.state],
        num_nodes=len(world.nodes) if world else asked.nodes,
        num_ranks=len(asked.ranks or ()) or asked.nodes * asked.procs,
        detach=True,
        created_at_s=call.created_at_s,
        ended_at_s=call.ended_at_s,
        conditions=_explain(call, ahead),
        ranks=tuple(_see(rank, call) for rank in make_ranks(world)) if world else (),
        verdict=call.verdict,
    )


def _explain(call: Call, ahead: int) -> tuple[Condition, ...]:
    if call.state is not CallState.QUEUED:
        return ()
    what = f"{ahead} call{'s' * (ahead > 1)} before it" if ahead else "it waits for its nodes"
    kind, reason = Phase.PENDING.value, names.REASON_QUEUED
    return (Condition(type=kind, reason=reason, message=what, since_s=call.created_at_s),)


def _see(rank: RankStatus, call: Call) -> RankStatus:
    outcome = call.attempt.outcomes.get(rank.rank) if call.attempt else None
    unheard = RankState.STOPPED if call.is_final else RankState.RUNNING
    state = outcome.state if outcome else unheard
    return replace(rank, state=state)


def read_call_logs(
    call: Call, folder: JobFolder, seen: Mapping[str, int]
) -> tuple[list[tuple[int, int, int]], bytes]:
    """New records of each rank, one after another: rank, node and length of each, and the bytes."""
    if call.attempt is None:
        return [], b""
    files, pieces = [], []
    for node in call.attempt.world.nodes:
        for rank in (*node.ranks, number_node(node.index)):
            try:
                with folder.log(call.attempt.number, rank).open("rb") as file:
                    file.seek(seen.get(str(rank), 0))
                    data = file.read()
            except FileNotFoundError:
                continue
            whole = data[: data.rfind(b"\n") + 1]
            files.append((rank, node.index, len(whole)))
            pieces.append(whole)
    return files, b"".join(pieces)
