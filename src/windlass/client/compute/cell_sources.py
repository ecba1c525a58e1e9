"""Source lines of functions that travel by value, so that tracebacks of ranks show them.

A function of a notebook's cell, or of a script on another machine, has no file where its ranks run.
"""

from __future__ import annotations

import inspect
import linecache
import os
import types
from collections.abc import Iterator
from typing import Any

_MAX_CHARACTERS = 256 << 10


def find_sources(target: Any, *, is_remote: bool) -> dict[str, str]:
    """The text of each file or cell that holds code of `__main__` which the target leads to."""
    sources: dict[str, str] = {}
    left = _MAX_CHARACTERS
    for code in _find_code(target):
        name = code.co_filename
        if name in sources or (not is_remote and os.path.exists(name)):
            continue
        text = "".join(linecache.getlines(name))
        left -= len(text)
        if left < 0:
            break
        sources[name] = text
    return sources


def _find_code(target: Any) -> Iterator[types.CodeType]:
    todo, seen = [inspect.unwrap(target) if callable(target) else target], set[int]()
    while todo:
        thing = todo.pop()
        if id(thing) in seen or getattr(thing, "__module__", None) != "__main__":
            continue
        seen.add(id(thing))
        if inspect.isclass(thing):
            todo += [value for base in thing.__mro__ for value in vars(base).values()]
        elif inspect.isfunction(thing):
            yield thing.__code__
            known = thing.__globals__
            todo += [known[name] for name in thing.__code__.co_names if name in known]
