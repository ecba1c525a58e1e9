"""Words for a function that is not here but in the image: its parameters cannot be read, only guessed.

`--name value`, `--name=value` and `--name` alone (true) are keywords, all else is positional. A value that
Python would read as a number, a list or the like is that; any other is text.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from windlass.errors import SpecError


def read_blind(words: Sequence[str]) -> tuple[list[object], dict[str, object]]:
    """Arguments and keywords, as well as they can be told without the function."""
    args: list[object] = []
    kwargs: dict[str, object] = {}
    queue = list(reversed(words))
    while queue:
        word = queue.pop()
        if not word.startswith("--"):
            args.append(_read_value(word))
            continue
        flag, equals, value = word[2:].partition("=")
        name = flag.replace("-", "_")
        if not name.isidentifier():
            raise SpecError(f"{word!r:.60} is no keyword of a function", hint="write --name VALUE")
        if equals:
            kwargs[name] = _read_value(value)
        elif queue and not queue[-1].startswith("--"):
            kwargs[name] = _read_value(queue.pop())
        else:
            kwargs[name] = True
    return args, kwargs


def _read_value(text: str) -> object:
    try:
        value: object = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {"true": True, "false": False, "none": None}.get(text.lower(), text)
    return value
