"""Where a user's files lie: the XDG folders, seen through the environment that is handed in."""

from __future__ import annotations

from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path


def place(environ: Mapping[str, str], variable: str, fallback: str) -> Path:
    from pathlib import Path

    # The XDG specification: a relative path there is invalid and must be ignored.
    if Path(environ.get(variable, "")).is_absolute():
        return Path(environ[variable]) / "windlass"
    return user_home(environ) / fallback / "windlass"


def user_home(environ: Mapping[str, str]) -> Path:
    from pathlib import Path

    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()


def state_home(environ: Mapping[str, str]) -> str:
    return str(place(environ, "XDG_STATE_HOME", ".local/state"))
