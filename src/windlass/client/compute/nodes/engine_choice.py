"""Default engine of computes and apps: the cluster if there is one, else this machine.

Reads the kubeconfig, but does not connect to an API server.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from windlass.kube.client.kubeconfig import ConfigError, read_target
from windlass.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """Name of an engine, and the reason for the choice."""

    engine: str
    why: str


def choose_where(given: str, settings: Settings) -> EngineChoice:
    """Return the given engine, else the setting, else the cluster of the kubeconfig or of this pod."""
    if given:
        return EngineChoice(engine=given, why=f"engine={given!r}")
    if settings.origin("engine") != "default":
        return EngineChoice(engine=settings.engine, why=settings.origin("engine"))
    try:
        cluster = read_target(context=settings.context, environ=os.environ)
    except ConfigError as error:
        return EngineChoice(engine="local", why=error.message)
    why = f"the kubeconfig's context {cluster.context}" if cluster.context else "this is a pod"
    return EngineChoice(engine="kubernetes", why=why)
