"""Stubs for the client's public names inside a rank, where the user's module is imported again.

Inside a rank, `@wl.compute(...)` must return the function unchanged, and `vol = wl.Volume(...)` must work.
The agent's archive may be all that is installed, and it contains no client. This module imports only the
standard library and starts nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from windlass import names

_RECORDS = ("Compute", "Image", "Secret", "Volume", "app", "images")


def is_inside() -> bool:
    """Return whether this process belongs to a node of a job."""
    return names.JOB_ID in os.environ


def find_stub(name: str) -> Any:
    """Return the stub for a public name of the client, or None if it has no stub."""
    if name in ("compute", "distribute"):
        return decorate
    if name in ("fn", "cls"):
        return Plain
    return Record(name) if name in _RECORDS else None


def decorate(target: Any = None, /, *_args: Any, **_keywords: Any) -> Any:
    """Return the target unchanged, with itself as `.local`. Works with and without parentheses."""
    return leave_plain if not callable(target) else leave_plain(target)


def leave_plain(target: Callable[..., Any]) -> Callable[..., Any]:
    """Return the target itself. Add the attribute `.local`, which it also has in clients."""
    if not hasattr(target, "local"):
        target.local = target  # type: ignore[attr-defined]
    return target


class Plain:
    """A remote function or class inside a rank. Calling it runs it in this process."""

    def __init__(self, target: Callable[..., Any], *_args: Any, **_keywords: Any) -> None:
        self._target = target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._target(*args, **kwargs)

    def local(self, *args: Any, **kwargs: Any) -> Any:
        """Call the target in this process."""
        return self._target(*args, **kwargs)

    def to(self, *_args: Any, **_keywords: Any) -> Plain:
        """Return self, because code in a rank already runs on the compute."""
        return self

    distribute = deploy = to


class Record:
    """Stub for a compute, image, secret, volume or app.

    Keyword arguments can be read back as attributes. Every other attribute is the stub itself.
    """

    def __init__(self, name: str, known: Mapping[str, Any] | None = None) -> None:
        self._name = name
        self._known = known or {}

    def __call__(self, *_args: Any, **keywords: Any) -> Record:
        return Record(self._name, {**self._known, **keywords})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._known.get(name, self)

    def __repr__(self) -> str:
        return f"<windlass.{self._name}, available in clients only>"
