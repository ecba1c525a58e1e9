"""A call as others see it: its status in the form of a job's, and what its ranks printed. Reads only."""

from __future__ import annotations

from collections.abc import Mapping

from windlass.agent.warm.calls import Call
from windlass.plan.plan import Plan
from windlass.wire.first import make_ranks
from windlass.wire.folder import JobFolder
from windlass.wire.status import JobStatus, Phase

_PHASES = {
    "queued": Phase.PENDING,
    "running": Phase.RUNNING,
    "returned": Phase.SUCCEEDED,
    "failed": Phase.FAILED,
    "cancelled": Phase.CANCELLED,
}


def make_call_status(call: Call, plan: Plan) -> JobStatus:
    """What is known of a call now."""
    world = call.attempt.world if call.attempt else None
    return JobStatus(
        job_id=call.id,
        name=str(call.asked["name"]),
        engine=plan.engine,
        work=str(call.asked["name"]),
        phase=_PHASES[call.state],
        num_nodes=len(world.nodes) if world else int(call.asked["world"]["nodes"]),
        num_ranks=world.num_ranks if world else 0,
        detach=True,
        created_at_s=call.created_at_s,
        ended_at_s=call.ended_at_s,
        ranks=make_ranks(world) if world else (),
        verdict=call.verdict,
    )


def read_call_logs(
    call: Call, folder: JobFolder, seen: Mapping[str, int]
) -> tuple[list[tuple[int, int, int]], bytes]:
    """New records of each rank, one after another: rank, node and length of each, and the bytes."""
    if call.attempt is None:
        return [], b""
    found, pieces = [], []
    for node in call.attempt.world.nodes:
        for rank in node.ranks:
            try:
                with folder.log(call.attempt.number, rank).open("rb") as file:
                    file.seek(int(seen.get(str(rank), 0)))
                    data = file.read()
            except FileNotFoundError:
                continue
            whole = data[: data.rfind(b"\n") + 1]
            found.append((rank, node.index, len(whole)))
            pieces.append(whole)
    return found, b"".join(pieces)
