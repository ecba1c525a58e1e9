"""The world of an attempt that ran on some of the nodes only: which node had which ranks.

An attempt on all nodes has the plan's own world and needs no file.
"""

from __future__ import annotations

import json

from windlass import names, records
from windlass.errors import ProtocolError
from windlass.plan.plan import Plan
from windlass.plan.topology import NodePlan
from windlass.wire.job_folder import JobFolder


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
