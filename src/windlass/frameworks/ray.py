"""The ray framework: runs a Ray cluster on all nodes, and the work once on node 0, next to Ray's head.

`ray.init()` and `ray.init(address="auto")` find the cluster through environment variables. Ray's processes
belong to nodes, not to ranks (`frameworks.ray_node`), so on a compute they outlive calls.
"""

from __future__ import annotations

import sys

from windlass.frameworks import python_ranks
from windlass.frameworks.framework import Framework, NodeCluster
from windlass.frameworks.ray_flags import DASHBOARD_PORT, POD_PORT, make_auth

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from windlass.frameworks.framework import ReportCluster
    from windlass.plan.plan import Plan, RankRendezvous
    from windlass.wire.messages.forkserver import ClusterNode

_LIBRARY = "ray"


def _make_env(plan: Plan, rank: int, *, attempt: int, rendezvous: RankRendezvous) -> dict[str, str]:
    env = python_ranks.make_env_without_rendezvous(
        plan, rank, attempt=attempt, rendezvous=rendezvous
    )
    return {**env, **_make_call_env(rendezvous)}


def _make_call_env(rendezvous: RankRendezvous) -> dict[str, str]:
    if not rendezvous.port:
        return {}
    return {
        "RAY_ADDRESS": f"{rendezvous.address}:{rendezvous.port}",
        **make_auth(rendezvous.secret),
    }


def _apply_variables() -> None:
    """Make a preloaded Ray read its environment variables again."""
    raylet = sys.modules.get("ray._raylet")
    if raylet is not None:
        raylet.Config.initialize("")  # Ray does the same when it enables tokens itself


def _run_node(address: str, port: int, node: ClusterNode, report: ReportCluster) -> NoReturn:
    from windlass.frameworks.ray_node import run_node

    run_node(address, port, node, report)


FRAMEWORK = Framework(
    name="ray",
    preload=(_LIBRARY,),
    takes_commands=False,
    gives_list=False,
    count_procs=lambda _procs, _kind: 1,
    make_env=_make_env,
    make_call_env=_make_call_env,
    store=None,
    apply_env=_apply_variables,
    is_consequence=lambda _error: False,
    cluster=NodeCluster(
        run=_run_node,
        meet=_apply_variables,
        first="Ray's head",
        other="Ray's worker",
        extra_nodes=1,
        library=_LIBRARY,
        pod_port=POD_PORT,
        dashboard_port=DASHBOARD_PORT,
    ),
)
