"""The engine `nice`: nodes are processes of this machine that a shell command starts."""

from __future__ import annotations

from windlass.engines.local.local_engine import LocalEngine
from windlass.settings import Settings

START = 'ulimit -c 0; exec nice -n 10 "$@"'  # "$@" is the agent, with its words


def make_engine(settings: Settings) -> LocalEngine:
    """Return the engine, as Windlass asks for it."""
    return LocalEngine(settings, name="nice", launcher=("sh", "-c", START, "sh"))
