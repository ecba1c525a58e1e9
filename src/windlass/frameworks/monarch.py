"""monarch: a Monarch worker on every node, and the work once, on node 0, with a mesh of those hosts.

A function has the mesh as its parameter `mesh`; other code asks `windlass.monarch.host_mesh`. Workers
belong to nodes and not to ranks (`frameworks.monarch_worker`), so that on a compute they outlive calls;
what actors a rank has on them ends with it.
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

    from windlass.frameworks.framework import TellCluster
    from windlass.plan.plan import Meeting, Plan
    from windlass.wire.messages.forkserver import ClusterNode

_LIBRARY = "torchmonarch"
_PARAMETER = "mesh"


def _make_env(plan: Plan, rank: int, *, attempt: int, meeting: Meeting) -> dict[str, str]:
    env = python_ranks.make_lone_env(plan, rank, attempt=attempt, meeting=meeting)
    return {**env, **_make_call_env(meeting)}


def _make_call_env(meeting: Meeting) -> dict[str, str]:
    return {names.MONARCH_WORKERS: " ".join(meeting.members)} if meeting.members else {}


def _fill(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Give a function that has the parameter its mesh; arguments that came are for the others."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return args, kwargs
    if _PARAMETER not in signature.parameters or _PARAMETER in kwargs:
        return args, kwargs
    others = [one for name, one in signature.parameters.items() if name != _PARAMETER]
    bound = signature.replace(parameters=others).bind(*args, **kwargs)
    # from here on user code wins: the package that it finds is the one that makes the mesh
    mesh = importlib.import_module("windlass.monarch").host_mesh()
    filled = inspect.BoundArguments(signature, bound.arguments)
    filled.arguments[_PARAMETER] = mesh
    return filled.args, filled.kwargs


def _explain(error: BaseException) -> BaseException:
    """Monarch ends its client by an interrupt when an actor failed and nobody handled it: say that."""
    failure = getattr(_find_hook(), "failure", "")
    if not failure or not isinstance(error, (KeyboardInterrupt, SystemExit)):
        return error
    return RuntimeError(
        f"a Monarch actor failed, and nothing handled it (__supervise__): {failure}"
    )


def _forget_failure() -> None:
    """Of an earlier call, in a process that stays."""
    hook = _find_hook()
    if getattr(hook, "failure", ""):
        hook.failure = ""


def _find_hook() -> Any:
    """What Monarch calls when nobody handles a failure: ours, once this process has a mesh."""
    return getattr(sys.modules.get("monarch.actor"), "unhandled_fault_hook", None)


def _prepare() -> None:
    """Import Monarch while there is nothing else to do; where it is missing, its worker has said so."""
    try:
        importlib.import_module("monarch.actor")
    except ImportError:
        return


def _leave() -> None:
    """Have hosts end this rank's actors now, and not once they have missed it for long."""
    client = sys.modules.get("windlass.frameworks.monarch_client")
    if client is not None:
        client.leave_mesh()


def _run_worker(address: str, port: int, node: ClusterNode, tell: TellCluster) -> NoReturn:
    del address, port  # each has its own
    from windlass.frameworks.monarch_worker import run_worker

    run_worker(node, tell)


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
