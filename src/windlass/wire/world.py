"""The world of an attempt that ran on some of the nodes only: which node had which ranks.

An attempt on all nodes has the plan's own world and needs no file.
"""

from __future__ import annotations

import json

from windlass import records
from windlass.plan.plan import Plan
from windlass.plan.topology import NodePlan
from windlass.wire.folder import JobFolder


def render_world(world: Plan) -> bytes:
    """What stands in the file."""
    return json.dumps([records.to_json(node) for node in world.nodes]).encode()


def read_world(folder: JobFolder, plan: Plan, attempt: int) -> tuple[NodePlan, ...]:
    """The nodes of one attempt, with the ranks they had in it."""
    try:
        found = json.loads(folder.world(attempt).read_bytes())
    except FileNotFoundError:
        return plan.nodes
    return tuple(records.read(NodePlan, node) for node in found)
