"""Deployments: start the decorated objects and apps of a script, and find deployed callables by name.

`deploy` imports the script under its own name, not as `__main__`. Nodes can then import it too, and its `if
__name__ == "__main__":` block does not run. `get` needs only a name: the lead of the compute keeps the
pickled callable and its distribution.
"""

from __future__ import annotations

import base64
import importlib.util
import pickle
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from windlass.client.compute.calls.callable_work import Work
from windlass.client.compute.calls.remote import Remote
from windlass.client.compute.deploy.app import App
from windlass.client.compute.deploy.decorators import Decorated
from windlass.client.compute.nodes.compute_connection import ask_at
from windlass.client.compute.nodes.compute_handle import Compute
from windlass.client.compute.nodes.compute_owners import (
    is_meant,
    join_owner,
    make_refusal,
    name_for,
    split_owner,
)
from windlass.client.compute.nodes.compute_spec import decide
from windlass.client.compute.nodes.find_computes import list_computes, read_compute_owner
from windlass.client.compute.nodes.live_nodes import LiveNodes
from windlass.engines.protocol import ComputeEngine, JobRef
from windlass.errors import JobNotFound, SpecError, WindlassError
from windlass.near_names import did_you_mean
from windlass.plan.plan import Plan
from windlass.rank_stubs import is_inside
from windlass.wire import payloads
from windlass.wire.messages.calls import ConfigureCompute

_NOTHING = "decorate a function with @wl.compute(...), or make an app with wl.app(...)"


class Deployed:
    """Pickled callable. Ranks load it, but this process may be unable to."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        raise TypeError("a deployed callable runs only on its compute")

    def __reduce__(self) -> Any:
        return pickle.loads, (self._data,)


def record_deployment(nodes: LiveNodes, work: Work, about: Mapping[str, Any]) -> None:
    """Store the record that `get` needs on the compute. `about` describes how to call the work."""
    segments = payloads.pack(work.target, name=work.name)
    target = base64.b64encode(b"".join(bytes(s) for s in segments[:1])).decode()
    nodes.ask(ConfigureCompute(record={work.name: {**about, "target": target}}))


def get(name: str, *, engine: str = "", namespace: str = "", context: str = "") -> Remote:
    """Return the callable that was deployed under this name, by this or another process.

    name: name of the deployment, or owner/name if another user deployed it.
    engine: engine to search (default: a cluster if there is one, else local).
    namespace: namespace to search (default: the setting).
    context: the kubeconfig's context (default: the setting).
    """
    given = {"engine": engine, "namespace": namespace, "context": context}
    where = decide({key: value for key, value in given.items() if value}, is_there=True)
    return _find(name, where.engine, context)


def _find(name: str, engine: ComputeEngine, context: str) -> Remote:
    owner, name = read_compute_owner(engine, name)
    known: list[str] = []
    others: list[tuple[JobRef, Plan]] = []
    for ref, plan in list_computes(engine):
        if not is_meant(engine, ref, plan, owner):
            others.append((ref, plan))
            continue
        record = _ask_record(engine, ref)
        known += record
        if name in record:
            return _make(name, record[name], ref, context)
    # only for the error, which names the owner
    for ref, plan in () if owner else others:
        if name in _ask_record(engine, ref):
            maker, _ = split_owner(name_for(engine, ref, plan))
            raise make_refusal(name, join_owner(maker, name), what="deployed name")
    hint = did_you_mean(name, known, "run `windlass deploy SCRIPT.py` to deploy it")
    whose = f" by {owner}" if owner else ""
    raise JobNotFound(f"nothing is deployed under the name {name!r}{whose}", hint=hint)


def _ask_record(engine: ComputeEngine, ref: JobRef) -> Mapping[str, dict[str, Any]]:
    """Return the deployments on a compute, or an empty dict if it does not answer."""
    try:
        return ask_at(engine, ref).record
    except (OSError, WindlassError):
        return {}


def _make(name: str, record: dict[str, Any], ref: JobRef, context: str) -> Remote:
    compute = Compute.at(ref, record["compute"], context=context)
    target = Deployed(base64.b64decode(record["target"]))
    return Remote.rebuild(target, name, record, compute)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedObject:
    """Deployed function, class or app, and its job."""

    name: str
    kind: str  # function, class or app
    ref: str  # reference of its job


def find_deployables(module: ModuleType, name: str = "") -> list[Decorated | App]:
    """Return the deployable objects of a module in source order, or only the one with this name."""
    held = vars(module).items()
    deployables = {key: value for key, value in held if isinstance(value, (Decorated, App))}
    if not deployables:
        raise SpecError(f"nothing to deploy in {module.__name__}.py", hint=_NOTHING)
    wanted = [value for key, value in deployables.items() if name in ("", key, value.name)]
    if not wanted:
        raise SpecError(
            f"{module.__name__}.py has no decorated function, class or app {name!r}",
            hint=did_you_mean(name, deployables),
        )
    return list({id(value): value for value in wanted}.values())


def deploy(
    deployables: list[Decorated | App], *, replace: bool = False
) -> Iterator[DeployedObject]:
    """Deploy objects one after the other. Yield each one when it is ready."""
    for deployable in deployables:
        if isinstance(deployable, App):
            job = deployable.deploy(replace=replace)
            yield DeployedObject(name=deployable.name, kind="app", ref=str(job.ref))
        else:
            deployable.deploy()
            kind = "class" if deployable.is_class else "function"
            yield DeployedObject(name=deployable.name, kind=kind, ref=str(deployable.ref))


def import_script(path: Path) -> ModuleType:
    """Import a script as a module of its own name, with its folder on the path as in a run."""
    if is_inside():
        raise SpecError(
            "inside a job, decorators leave functions unchanged, so there is nothing to deploy",
            hint="run `windlass deploy` outside of the job",
        )
    path = path.resolve()
    name = path.stem
    if "." in name:
        raise SpecError(
            f"cannot import {path.name}: {name!r} is not a valid module name",
            hint="rename it so that .py is its only dot",
        )
    known = getattr(sys.modules.get(name), "__file__", None)
    if name in sys.modules and (known is None or Path(known).resolve() != path):
        raise SpecError(
            f"{path.name} has the name of a module that is already loaded: {known or name}",
            hint="rename the script",
        )
    sys.path.insert(0, str(path.parent))
    return _execute(name, path)


def _execute(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SpecError(
            f"{path.name} is not a Python file", hint="pass a script such as my_script.py"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise SpecError(
            f"{error.filename}, line {error.lineno}: {error.msg}", hint="correct that line"
        ) from error
    except WindlassError:
        raise
    except (Exception, SystemExit) as error:  # importing a script may raise anything
        where = _find_line(error, path)
        raise SpecError(
            f"{where} raised {type(error).__name__}: {error}",
            hint='deploy imports the script: put code for runs only under if __name__ == "__main__":',
        ) from error
    return module


def _find_line(error: BaseException, path: Path) -> str:
    """Return the last line of the script itself in the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename) == path]
    return f"{path.name}, line {lines[-1]}," if lines else path.name
