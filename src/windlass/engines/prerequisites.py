"""What a job's main object is made upon, asked of the cluster: the object that its prerequisite is a copy of.

Which kinds, and what becomes of it, is a dialect's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from windlass import names
from windlass.engines.dialects.dialect import Dialect, Prerequisite
from windlass.errors import SpecError
from windlass.kube.client.api import Api
from windlass.kube.client.api_errors import ClusterError, Forbidden, NotFound
from windlass.kube.objects.fields import labels_of, name_of
from windlass.near_names import did_you_mean
from windlass.plan.plan import Plan


def read_source(api: Api, dialect: Dialect, plan: Plan) -> dict[str, Any]:
    """The object that the plan's prerequisite is made from; nothing where the dialect has none."""
    needed = dialect.prerequisite
    if needed is None:
        return {}
    name = needed.source_name(plan)
    for kind in needed.sources:
        try:
            return api.get(kind, name)
        except NotFound:
            continue
        except Forbidden as error:
            if kind.namespaced:
                raise
            own = needed.sources[0].name
            error.hint = (
                f"name a {own} of namespace {api.namespace} with --runtime, or ask an admin for a "
                f"ClusterRole that may get {kind.plural}: `windlass doctor -e {dialect.name}` prints it"
            )
            raise
    kinds = " or ".join(kind.name for kind in needed.sources)
    known = list_sources(api, needed)
    there = (
        f"there is: {', '.join(known)}" if known else f"ask an admin of the cluster for a {kinds}"
    )
    raise SpecError(
        f"there is no {kinds} {name!r} for namespace {api.namespace}",
        hint=did_you_mean(name, known, there),
    )


def list_sources(api: Api, needed: Prerequisite) -> list[str]:
    """The names of all there are, as far as they may be listed; copies that jobs have are not among them."""
    known: list[str] = []
    for kind in needed.sources:
        try:
            bodies = api.list(kind)
        except ClusterError:
            continue
        known += [name_of(body) for body in bodies if names.LABEL_JOB not in labels_of(body)]
    return list(dict.fromkeys(known))


def find_source(connect: Callable[[], Api], dialect: Dialect, plan: Plan) -> Mapping[str, Any]:
    """The same for a document: the cluster is asked only for what its product does not ship."""
    needed = dialect.prerequisite
    name = needed.source_name(plan) if needed else ""
    if needed is None or name in needed.shipped:
        return needed.shipped[name] if needed else {}
    return read_source(connect(), dialect, plan)
