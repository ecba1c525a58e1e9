"""Engine of a TrainerClient: the requested one, a cluster's TrainJobs, its Jobs, or this machine.

Queries the cluster once for the APIs it serves.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from windlass.client.compute.nodes.engine_choice import EngineChoice, choose_where
from windlass.client.jobs.run import current_folder
from windlass.engines.engine_table import check_engine_name, load_dialect
from windlass.errors import EngineMissing
from windlass.kube.client.access import check_needs
from windlass.kube.client.api import connect
from windlass.settings import Settings, read_settings
from windlass.trainer.sdk_errors import WrongArgument

_TRAINJOB = "trainjob"
_CLUSTER = "kubernetes"


@dataclass
class KubernetesBackendConfig:
    """A cluster and a namespace in it.

    namespace: namespace of the pods (default: the context's own).
    config_file: not supported, set KUBECONFIG instead.
    context: kubeconfig context (default: the current one).
    client_configuration: not supported.
    """

    namespace: str | None = None
    config_file: str | None = None
    context: str | None = None
    client_configuration: Any = None


@dataclass
class LocalProcessBackendConfig:
    """This machine.

    cleanup_venv: ignored, because no virtual environment is created.
    """

    cleanup_venv: bool = True


def read_backend(config: Any) -> tuple[str, dict[str, Any]]:
    """Return the engine and settings of a backend_config, which may be the SDK's own object."""
    kind = type(config).__name__
    if config is None:
        return "", {}
    if kind == "LocalProcessBackendConfig":
        return "local", {}
    if kind != "KubernetesBackendConfig":
        raise WrongArgument(
            f"{config!r:.60} is not a supported backend",
            hint="use KubernetesBackendConfig(namespace=...) or LocalProcessBackendConfig()",
        )
    if config.config_file or config.client_configuration:
        raise WrongArgument(
            "a backend_config cannot name a kubeconfig",
            hint="set KUBECONFIG to the file, and pass the context",
        )
    settings = {"namespace": config.namespace, "context": config.context}
    return _CLUSTER, {key: value for key, value in settings.items() if value}


def pick_engine(
    engine: str, backend_config: Any, given: Mapping[str, Any]
) -> tuple[EngineChoice, Settings]:
    """Return the engine with the reason for it, and the settings that all jobs of the client share."""
    backend, own = read_backend(backend_config)
    flags = {**given, **own}
    if engine:
        check_engine_name(engine)
    settings = _read(flags)
    if backend == "local" and not engine:
        choice = EngineChoice(engine="local", why="LocalProcessBackendConfig")
    elif backend and not engine:
        choice = _choose_on_cluster(settings, "KubernetesBackendConfig")
    else:
        choice = choose_where(engine, settings)
        if not engine and choice.engine == _CLUSTER and settings.origin("engine") == "default":
            choice = _choose_on_cluster(settings, choice.why)
    return choice, _read({**flags, "engine": choice.engine})


def _choose_on_cluster(settings: Settings, why: str) -> EngineChoice:
    """Choose TrainJobs if the cluster serves them, and plain Jobs otherwise."""
    api = connect(context=settings.context, namespace=settings.namespace, engine=_TRAINJOB)
    try:
        check_needs(api, load_dialect(_TRAINJOB).needs)
    except EngineMissing as missing:
        return EngineChoice(engine=_CLUSTER, why=f"{why}; {missing.message}")
    return EngineChoice(engine=_TRAINJOB, why=f"{why}; it serves TrainJob")


def _read(flags: Mapping[str, Any]) -> Settings:
    return read_settings(flags=flags, environ=os.environ, start=current_folder())
