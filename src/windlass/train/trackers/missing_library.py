"""A tracker's library, imported when the tracker is named; a missing one is named with how to install it.

Called on the main thread before anything trains: no thread imports while the training forks its data workers.
"""

from __future__ import annotations

import importlib
from typing import Any

from windlass.errors import SpecError


def import_library(module: str, *, tracker: str, package: str, otherwise: str = "") -> Any:
    """The module, or an error with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SpecError(
            f"tracker {tracker!r} needs {package}, which cannot be imported here: {error}",
            hint=f"pip install {package}{otherwise}; metrics.jsonl is written in any case",
        ) from error
