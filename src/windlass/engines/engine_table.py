"""Table of engines: the built-in ones, and those that other packages add.

A built-in engine is a row of this table. Another package adds an engine through an entry point of the group
`windlass.engines`, which is a `Dialect` or a callable that makes an `Engine` from the settings. An engine is
imported only when it is used. Installed packages are searched only for names that are not built in, and to
list all names.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from windlass.engines.protocol import ComputeEngine, Engine, Renderer
from windlass.errors import EngineMissing, SpecError, WindlassError
from windlass.near_names import did_you_mean
from windlass.settings import Settings

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from windlass.engines.dialects.dialect import Dialect

logger = logging.getLogger(__name__)

GROUP = "windlass.engines"
_ENGINES = {"local": "windlass.engines.local.local_engine:LocalEngine"}
_DIALECTS = {
    "kubernetes": "windlass.engines.dialects.kubernetes:KUBERNETES",
    "monarchmesh": "windlass.engines.dialects.monarchmesh:MONARCHMESH",
    "pytorchjob": "windlass.engines.dialects.pytorchjob:PYTORCHJOB",
    "raycluster": "windlass.engines.dialects.raycluster:RAYCLUSTER",
    "trainjob": "windlass.engines.dialects.trainjob:TRAINJOB",
}
# Import path of each exporter, and its product's name for errors.
_EXPORTS = {
    "statefulset": ("windlass.engines.exports.statefulset:StatefulSetExport", "a StatefulSet")
}
_BUILT_IN = frozenset((*_ENGINES, *_DIALECTS, *_EXPORTS))
_NAME = re.compile(r"[a-z][a-z0-9-]*")
_HOME_FOLDERS = frozenset({"bundles", "jobs", "locks", "volumes"})  # reserved


# -- names ---------------------------------------------------------------------------------------


def engine_names() -> tuple[str, ...]:
    """Return the engines that run jobs: the built-in ones, then those of other packages."""
    return (*_ENGINES, *_DIALECTS, *_read_plugins())


def renderer_names() -> tuple[str, ...]:
    """Return all engines, including those that only export."""
    return (*_ENGINES, *_DIALECTS, *_EXPORTS, *_read_plugins())


def engine_names_here(settings: Settings) -> tuple[str, ...]:
    """Return the engines that may have jobs on this machine.

    These are the built-in engines, the one in the settings, and other packages' engines with a folder in the
    home.
    """
    known = [*_ENGINES, *_DIALECTS]
    if settings.engine not in _BUILT_IN:
        known.append(settings.engine)
    folders = _list_folders(Path(str(settings.value("home"))).expanduser())
    if strange := folders - _HOME_FOLDERS - set(known):
        known += [name for name in _read_plugins() if name in strange]
    return tuple(known)


def _list_folders(home: Path) -> set[str]:
    try:
        return {entry.name for entry in os.scandir(home) if entry.is_dir()}
    except OSError:
        return set()


def check_engine_name(name: str) -> None:
    """Raise `SpecError` if no engine has this name."""
    if name not in _BUILT_IN and name not in _read_plugins():
        known = renderer_names()
        hint = did_you_mean(name, known, f"available engines: {', '.join(known)}")
        raise SpecError(f"unknown engine {name!r}", hint=hint)


def only_exports(name: str) -> bool:
    """Return whether the engine of that name writes documents and runs nothing."""
    return name in _EXPORTS


def has_pods(name: str, settings: Settings) -> bool:
    """Return whether an engine's nodes are pods, without importing built-in engines."""
    if name in _BUILT_IN:
        return name not in _ENGINES
    return "pods" in make_renderer(name, settings).can


# -- engines -------------------------------------------------------------------------------------


def make_renderer(name: str, settings: Settings) -> Renderer:
    """Return the engine of that name, which may only export."""
    check_engine_name(name)
    if name not in _BUILT_IN:
        return _make_plugin(name, settings)
    if name in _DIALECTS:
        return _make_cluster_engine(load_dialect(name), settings)
    place = _EXPORTS[name][0] if name in _EXPORTS else _ENGINES[name]
    renderer: Renderer = _load(place)(settings)
    return renderer


def make_engine(name: str, settings: Settings) -> Engine:
    """Return the engine of that name, which runs jobs."""
    return as_engine(make_renderer(name, settings))


def make_compute_engine(name: str, settings: Settings) -> ComputeEngine:
    """Return the engine of that name, which keeps computes."""
    engine = make_engine(name, settings)
    if "computes" not in engine.can:
        raise SpecError(
            f"the engine {name} supports jobs but not computes",
            hint="use engine local, kubernetes or monarchmesh",
        )
    return cast("ComputeEngine", engine)


def as_engine(renderer: Renderer) -> Engine:
    """Return the renderer as an engine. Raise `SpecError` if it only exports."""
    if only_exports(renderer.name):
        raise SpecError(
            f"{_EXPORTS[renderer.name][1]} is only exported, not run by Windlass",
            hint=f"run `windlass export -e {renderer.name} ... | kubectl apply -f -`, "
            "or run with -e kubernetes",
        )
    return cast("Engine", renderer)


def find_dialect(name: str) -> Dialect | None:
    """Return the dialect of an engine, or None if it has none."""
    if name in _DIALECTS:
        dialect: Dialect = _load(_DIALECTS[name])
        return dialect
    if name in _BUILT_IN:
        return None
    check_engine_name(name)
    plugin = _load_plugin(name)
    return plugin if _is_dialect(plugin) else None


def load_dialect(name: str) -> Dialect:
    """Return the dialect of an engine that runs on Kubernetes."""
    dialect = find_dialect(name)
    if dialect is None:
        raise SpecError(f"the engine {name} does not run on Kubernetes", hint="use -e kubernetes")
    return dialect


def _make_cluster_engine(dialect: Dialect, settings: Settings) -> Engine:
    from windlass.engines.cluster.cluster_engine import ClusterEngine

    return ClusterEngine(dialect, settings)


def _load(place: str) -> Any:
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)


# -- engines of other packages -------------------------------------------------------------------


def find_package(name: str) -> str:
    """Return name and version of the package that adds an engine, or "" for a built-in one."""
    return "" if name in _BUILT_IN else _describe(_read_plugins()[name][0])


def _make_plugin(name: str, settings: Settings) -> Engine:
    plugin = _load_plugin(name)
    if _is_dialect(plugin):
        return _make_cluster_engine(plugin, settings)
    try:
        engine: Engine = plugin(settings)
    except WindlassError:
        raise
    except Exception as error:
        raise _blame(name, f"cannot be made: {_name_error(error)}") from error
    _check_plugin(name, engine)
    if missing := _find_missing(engine):
        raise _blame(name, f"lacks members of the engine protocols: {', '.join(missing)}")
    return engine


def _load_plugin(name: str) -> Any:
    """Import the object of an entry point: a dialect, or a factory of engines."""
    entries = _read_plugins()[name]
    if len(entries) > 1:
        packages = " and ".join(_describe(entry) for entry in entries)
        raise EngineMissing(
            f"the packages {packages} both provide an engine {name!r}",
            hint=f"run `pip uninstall {_package_name(entries[-1])}`",
        )
    try:
        plugin = entries[0].load()
    except Exception as error:
        raise _blame(name, f"cannot be loaded: {_name_error(error)}") from error
    if _is_dialect(plugin):
        _check_plugin(name, plugin)
    elif not callable(plugin):
        raise _blame(
            name, f"is a {type(plugin).__name__}, neither a Dialect nor a class of engines"
        )
    return plugin


def _is_dialect(plugin: object) -> bool:
    from windlass.engines.dialects.dialect import Dialect

    return isinstance(plugin, Dialect)


def _check_plugin(name: str, engine: Any) -> None:
    """Check the engine's name, which references and folders of jobs use to find it."""
    if getattr(engine, "name", None) != name:
        raise _blame(name, f"calls itself {getattr(engine, 'name', None)!r}")


def _find_missing(engine: Engine) -> list[str]:
    """Return the names of protocol members that the engine lacks."""
    keeps_computes = "computes" in getattr(engine, "can", ())
    protocols: Sequence[type] = (Renderer, Engine, *([ComputeEngine] if keeps_computes else ()))
    wanted = [name for one in protocols for name in (*one.__annotations__, *vars(one))]
    return [name for name in wanted if not name.startswith("_") and not hasattr(engine, name)]


def _blame(name: str, what: str) -> EngineMissing:
    entry = _read_plugins()[name][0]
    return EngineMissing(
        f"the engine {name!r} of the package {_describe(entry)} {what}",
        hint=f"run `pip install --upgrade {_package_name(entry)}`, or use another engine",
    )


def _name_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _package_name(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else entry.value


def _describe(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value


def _read_plugins() -> dict[str, list[EntryPoint]]:
    """Return the entry points of installed packages by the engines that they add."""
    return _scan_plugins(tuple(sys.path))


@functools.lru_cache(maxsize=1)
def _scan_plugins(_path: Sequence[str]) -> dict[str, list[EntryPoint]]:
    import importlib.metadata  # reads the metadata of all packages, which takes at least 20 ms

    plugins: dict[str, list[EntryPoint]] = {}
    for entry in importlib.metadata.entry_points(group=GROUP):
        if entry.name in _BUILT_IN:
            logger.warning(
                "the package %s adds an engine %r, which is built in: ignored",
                _describe(entry), entry.name,
            )  # fmt: skip
        elif not _NAME.fullmatch(entry.name) or entry.name in _HOME_FOLDERS:
            logger.warning(
                "the package %s adds an engine %r, which is not a valid name: ignored",
                _describe(entry), entry.name,
            )  # fmt: skip
        else:
            plugins.setdefault(entry.name, []).append(entry)
    return dict(sorted(plugins.items()))
