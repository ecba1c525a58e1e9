"""Loader of benchmarks, which are programs whose modules import each other from their own folder."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def load() -> Iterator[object]:
    """Return a function that loads a benchmark's modules by name. They are unloaded on exit."""
    before = set(sys.modules)
    sys.path.insert(0, str(_FOLDER))
    try:
        yield importlib.import_module
    finally:
        sys.path.remove(str(_FOLDER))
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).parent == _FOLDER:
                del sys.modules[name]
