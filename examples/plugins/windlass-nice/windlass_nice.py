"""The engine `nice`, whose nodes are local processes started by a shell command at low priority."""

from __future__ import annotations

from windlass.engines.local.local_engine import LocalEngine
from windlass.settings import Settings

START = 'ulimit -c 0; exec nice -n 10 "$@"'  # "$@" is the agent's command


def make_engine(settings: Settings) -> LocalEngine:
    """Return the engine. Windlass calls this through the entry point."""
    return LocalEngine(settings, name="nice", launcher=("sh", "-c", START, "sh"))
