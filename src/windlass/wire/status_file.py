"""A job's status and worlds as files: the first status, the status file, and the world of an attempt.

Engines write the first status from the plan alone; the lead goes on from it. A status that is asked for often
is parsed only when its file has changed. An attempt on some of the nodes leaves a file that says which
node had which ranks; one on all nodes has the plan's own world and needs none.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from windlass import names, records
from windlass.errors import ProtocolError
from windlass.plan.plan import NodePlan, Plan
from windlass.trusted import open_now
from windlass.wire.job_folder import JobFolder
from windlass.wire.states import MomentName
from windlass.wire.status import JobStatus, Moment, NodeStatus, RankStatus

_MAX_TIME_S = 253_000_000_000.0  # of the year 9987: calendars end with 9999


def make_first_status(plan: Plan) -> JobStatus:
    """A job's status before anything has been seen of it."""
    return JobStatus(
        job_id=plan.job_id,
        name=plan.name,
        engine=plan.engine,
        work=plan.work.label,
        restarts=plan.restarts,
        num_nodes=len(plan.nodes),
        num_ranks=plan.num_ranks,
        detach=plan.detach,
        created_at_s=plan.created_at_s,
        nodes=tuple(NodeStatus(index=node.index, name=node.name) for node in plan.nodes),
        ranks=make_ranks(plan),
        timeline=(Moment(name=MomentName.SUBMITTED, at_s=plan.created_at_s),),
    )


def render_status(status: JobStatus) -> bytes:
    """What stands in the status file."""
    return json.dumps(records.to_json(status), separators=(",", ":")).encode()


def make_ranks(plan: Plan) -> tuple[RankStatus, ...]:
    """Every rank, none of them started."""
    return tuple(
        RankStatus(rank=rank, node=node.index) for node in plan.nodes for rank in node.ranks
    )


def read_status(text: bytes) -> JobStatus:
    """A status that somebody else wrote; ProtocolError if it is malformed or out of range."""
    status = records.read(JobStatus, records.parse(text, "the status"))
    if not (0 <= status.num_ranks <= names.MAX_RANKS and 0 <= status.num_nodes <= names.MAX_RANKS):
        raise ProtocolError(
            f"the status speaks of {status.num_ranks:.3g} ranks on {status.num_nodes:.3g} nodes"
        )
    if not 0 <= status.attempt < names.MAX_ATTEMPTS:
        raise ProtocolError("the status speaks of an attempt that cannot be")
    if not all(0 <= at_s < _MAX_TIME_S for at_s in (status.created_at_s, status.ended_at_s or 0.0)):
        raise ProtocolError("the status speaks of a time that cannot be")
    return status


class StatusFile:
    """The status in one file; `read` raises what opening and parsing it raise."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._status: JobStatus | None = None

    @property
    def last(self) -> JobStatus | None:
        """What was last read."""
        return self._status

    def read_known(self) -> JobStatus | None:
        """The same, but None if there is no status yet or only half of one, as after a power cut."""
        try:
            return self.read()
        except (FileNotFoundError, ProtocolError):
            return None

    def read(self) -> JobStatus:
        with open(self._path, "rb", opener=open_now) as file:
            info = os.fstat(file.fileno())
            stamp = (info.st_ino, info.st_mtime_ns, info.st_size)
            if self._status is None or stamp != self._stamp:
                self._status = read_status(file.read(records.MAX_JSON_BYTES + 1))
                self._stamp = stamp
            return self._status


def render_world(world: Plan) -> bytes:
    """What stands in the file."""
    return json.dumps([records.to_json(node) for node in world.nodes]).encode()


def read_world(folder: JobFolder, plan: Plan, attempt: int) -> tuple[NodePlan, ...]:
    """The nodes of one attempt, with the ranks they had in it."""
    try:
        with folder.world(attempt).open("rb") as file:
            text = file.read(records.MAX_JSON_BYTES + 1)
    except FileNotFoundError:
        return plan.nodes
    world = records.parse(text, f"the world of attempt {attempt}")
    if not isinstance(world, list):
        raise ProtocolError(f"the world of attempt {attempt} is no list of nodes")
    nodes = tuple(records.read(NodePlan, node) for node in world)
    is_sane = all(min(node.index, node.first_rank, node.num_ranks) >= 0 for node in nodes)
    if not is_sane or sum(node.num_ranks for node in nodes) > names.MAX_RANKS:
        raise ProtocolError(f"the world of attempt {attempt} has more than {names.MAX_RANKS} ranks")
    return nodes
