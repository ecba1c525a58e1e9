"""Rows for `windlass engines`: each engine's requirements, the installed versions, and its capabilities.

Queries the cluster once. If the cluster is unreachable, the rows contain the error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from windlass.engines.dialects.dialect import Dialect
from windlass.engines.engine_table import (
    find_dialect,
    find_package,
    make_engine,
    only_exports,
    renderer_names,
)
from windlass.engines.protocol import Renderer
from windlass.errors import EngineMissing, WindlassError
from windlass.kube.client.access import Need, check_needs
from windlass.kube.client.api import Api, connect
from windlass.kube.client.api_errors import ClusterError, Forbidden
from windlass.kube.objects.inventory import read_release
from windlass.kube.objects.kinds import CRDS
from windlass.settings import Settings

# The capabilities that matter to users. The rest of `can` is for programs.
_WORDS = {
    "computes": "computes",
    "detach": "detached jobs",
    "restarts": "restarts",
    "timeout": "time limits",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRow:
    """One engine. `is_here` is True if a job could be submitted to it now."""

    name: str
    makes: str  # kind of its nodes
    needs: str
    version: str  # installed version, or the reason why none was found
    is_here: bool
    can: tuple[str, ...]


def list_engines(settings: Settings) -> Iterator[EngineRow]:
    """Yield a row for each engine, in the order of the tables."""
    api, problem = _connect(settings)
    for name in renderer_names():
        if only_exports(name):
            yield EngineRow(
                name=name, makes="documents", needs="", version="", is_here=False, can=("export",)
            )
            continue
        try:
            dialect = find_dialect(name)
            engine = make_engine(name, settings)
        except EngineMissing as error:  # an engine of another package failed to load
            package = find_package(name)
            yield EngineRow(
                name=name, makes="-", needs=package, version=error.message, is_here=False, can=()
            )
            continue
        if dialect is not None:
            yield _make_dialect_row(dialect, api, problem)
        else:
            yield _make_engine_row(engine)


def _connect(settings: Settings) -> tuple[Api | None, str]:
    try:
        api = connect(context=settings.context, namespace=settings.namespace)
        return api, str(api.request("GET", "/version").get("gitVersion", ""))
    except WindlassError as error:
        return None, error.message


def _make_engine_row(engine: Renderer) -> EngineRow:
    """Return the row of an engine without a dialect."""
    package = find_package(engine.name)
    return EngineRow(
        name=engine.name,
        makes=f"those of {package}" if package else "processes",
        needs="",
        version="",
        is_here=True,
        can=_name_abilities(engine),
    )


def _make_dialect_row(dialect: Dialect, api: Api | None, version: str) -> EngineRow:
    """Return the row of a dialect. `version` is that of Kubernetes, or the reason why it is unknown."""
    version_here, is_here = version, api is not None
    if api is not None and dialect.needs:
        try:
            check_needs(api, dialect.needs)
            version_here = _join(_describe(api, need) for need in dialect.needs)
        except (EngineMissing, ClusterError) as error:
            version_here, is_here = error.message, False
    needs = _join(need.product for need in dialect.needs) or "Kubernetes 1.29"
    others = ("jobs of others",) if dialect.adoption else ()
    can = (*_name_abilities(dialect), *others, "export")
    return EngineRow(
        name=dialect.name,
        makes=f"pods of a {dialect.kind.name}",
        needs=needs,
        version=version_here,
        is_here=is_here,
        can=can,
    )


def _describe(api: Api, need: Need) -> str:
    """Return the API's version, and the release if the CRD has it and may be read."""
    kind = need.kind
    try:
        release = read_release(api.get(CRDS, f"{kind.plural}.{kind.group}"))
    except (Forbidden, ClusterError):
        release = ""
    return f"{kind.api_version}{f' (release {release})' if release else ''}"


def _join(texts: Iterable[str]) -> str:
    """Join texts without duplicates, because one product may have several kinds."""
    return ", ".join(dict.fromkeys(texts))


def _name_abilities(engine: Renderer | Dialect) -> tuple[str, ...]:
    return tuple(word for name, word in _WORDS.items() if name in engine.can)
