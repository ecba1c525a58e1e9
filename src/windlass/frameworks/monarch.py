"""The monarch framework: runs a Monarch worker on every node, and the work once on node 0 with a host mesh.

A function gets the mesh as its parameter `mesh`. Other code calls `windlass.monarch.host_mesh`. Workers
belong to nodes, not to ranks (`frameworks.monarch_worker`), so on a compute they outlive calls. A rank's
actors end with the rank.
"""

from __future__ import annotations

import importlib
import inspect
import sys

from windlass import names
from windlass.frameworks import python_ranks
from windlass.frameworks.framework import Framework, NodeCluster

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, NoReturn

    from windlass.frameworks.framework import ReportCluster
    from windlass.plan.plan import Plan, RankRendezvous
    from windlass.wire.messages.forkserver import ClusterNode

_LIBRARY = "torchmonarch"
_PARAMETER = "mesh"


def _make_env(plan: Plan, rank: int, *, attempt: int, rendezvous: RankRendezvous) -> dict[str, str]:
    env = python_ranks.make_env_without_rendezvous(
        plan, rank, attempt=attempt, rendezvous=rendezvous
    )
    return {**env, **_make_call_env(rendezvous)}


def _make_call_env(rendezvous: RankRendezvous) -> dict[str, str]:
    return {names.MONARCH_WORKERS: " ".join(rendezvous.members)} if rendezvous.members else {}


def _fill(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Pass the mesh to a function that has the parameter, unless the caller passed one by keyword."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return args, kwargs
    if _PARAMETER not in signature.parameters or _PARAMETER in kwargs:
        return args, kwargs
    others = [one for name, one in signature.parameters.items() if name != _PARAMETER]
    bound = signature.replace(parameters=others).bind(*args, **kwargs)
    # imported by name, so that the `windlass` package that user code sees makes the mesh
    mesh = importlib.import_module("windlass.monarch").host_mesh()
    filled = inspect.BoundArguments(signature, bound.arguments)
    filled.arguments[_PARAMETER] = mesh
    return filled.args, filled.kwargs


def _explain(error: BaseException) -> BaseException:
    """Return an error that names the failed actor, if Monarch interrupted this client because of one."""
    failure = getattr(_find_hook(), "failure", "")
    if not failure or not isinstance(error, (KeyboardInterrupt, SystemExit)):
        return error
    return RuntimeError(f"a Monarch actor failed, and no __supervise__ handled it: {failure}")


def _forget_failure() -> None:
    """Clear the actor failure of an earlier call in this process."""
    hook = _find_hook()
    if getattr(hook, "failure", ""):
        hook.failure = ""


def _find_hook() -> Any:
    """Return Monarch's hook for unhandled failures: a `FaultHook` once this process has a mesh."""
    return getattr(sys.modules.get("monarch.actor"), "unhandled_fault_hook", None)


def _prepare() -> None:
    """Import Monarch while the rank waits for a call. The worker reports it if Monarch is missing."""
    try:
        importlib.import_module("monarch.actor")
    except ImportError:
        return


def _leave() -> None:
    """End this rank's actors now, instead of when the hosts' orphan timeout expires."""
    client = sys.modules.get("windlass.frameworks.monarch_client")
    if client is not None:
        client.leave_mesh()


def _run_worker(address: str, port: int, node: ClusterNode, report: ReportCluster) -> NoReturn:
    del address, port  # each worker chooses its own
    from windlass.frameworks.monarch_worker import run_worker

    run_worker(node, report)


FRAMEWORK = Framework(
    name="monarch",
    preload=("torch",),
    takes_commands=False,
    gives_list=False,
    count_procs=lambda _procs, _kind: 1,
    make_env=_make_env,
    make_call_env=_make_call_env,
    store=None,
    is_consequence=lambda _error: False,
    cluster=NodeCluster(
        run=_run_worker,
        meet=_forget_failure,
        first="Monarch's worker",
        other="Monarch's worker",
        extra_nodes=0,
        library=_LIBRARY,
        needs_all=True,
        is_in_project=True,
        is_mesh=True,
        prints=True,
        prepare=_prepare,
        leave=_leave,
    ),
    gives=_PARAMETER,
    fill=_fill,
    explain=_explain,
)
