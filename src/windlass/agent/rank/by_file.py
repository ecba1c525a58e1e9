"""A function or class of a script, by the script's own name: how it travels where its code cannot.

Code of one Python minor version does not run in another. A script that guards its main part can be imported
by its ranks, as any module of the project; they find the function there.
"""

from __future__ import annotations

import importlib
from typing import Any


class ByFile:
    """Stands for something a script defines; unpickled in a rank it becomes the thing itself."""

    def __init__(self, module: str, name: str) -> None:
        self._module = module
        self._name = name

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        raise TypeError("it runs on its compute only")

    def __reduce__(self) -> Any:
        return find, (self._module, self._name)


def find(module: str, name: str) -> Any:
    """Whatever a module of the project defines under this name."""
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value
