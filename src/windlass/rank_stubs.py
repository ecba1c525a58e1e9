"""What the client's names mean inside a rank, where a user's module is imported a second time.

There `@wl.compute(...)` must leave the function as it is, and `vol = wl.Volume(...)` must not need a client
that is not there: only the agent's archive may be. Standard library only; nothing here starts anything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from windlass import names

_RECORDS = ("Compute", "Image", "Secret", "Volume", "app", "images")


def is_inside() -> bool:
    """Whether this process belongs to a node of a job."""
    return names.JOB_ID in os.environ


def find_meaning(name: str) -> Any:
    """What stands for a client's public name; None where nothing does."""
    if name in ("compute", "distribute"):
        return decorate
    if name in ("fn", "cls"):
        return Plain
    return Record(name) if name in _RECORDS else None


def decorate(target: Any = None, /, *_args: Any, **_keywords: Any) -> Any:
    """A decorator that leaves what it decorates as it is; `.local` is the same thing."""
    return leave_plain if not callable(target) else leave_plain(target)


def leave_plain(target: Callable[..., Any]) -> Callable[..., Any]:
    """The target itself; only `.local`, which means the same everywhere, is there too."""
    if not hasattr(target, "local"):
        target.local = target  # type: ignore[attr-defined]
    return target


class Plain:
    """A remote function or class seen from inside: to call it is to run it."""

    def __init__(self, target: Callable[..., Any], *_args: Any, **_keywords: Any) -> None:
        self._target = target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._target(*args, **kwargs)

    def local(self, *args: Any, **kwargs: Any) -> Any:
        """The same."""
        return self._target(*args, **kwargs)

    def to(self, *_args: Any, **_keywords: Any) -> Plain:
        """Itself: it is there already."""
        return self

    distribute = deploy = to


class Record:
    """A compute, an image, a volume: what it was given can be read back, all else means nothing here."""

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
        return f"<windlass.{self._name}, which only clients have>"
