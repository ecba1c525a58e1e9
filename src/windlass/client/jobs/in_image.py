"""Targets that are in the image already: nothing travels, and nothing can be checked here.

What a path means is the image's matter: relative ones are seen from its working folder. Nothing is imported
ahead unless it is asked for: what the source sets before it imports torch cannot be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from windlass.client.jobs.target import WorkTarget
from windlass.errors import SpecError
from windlass.spec.work import Command, Function, Module, Script
from windlass.wire import pickling


def read_in_image(
    target: str | Path | Callable[..., Any] | Sequence[str],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> WorkTarget:
    """What `target` means in the image, with its arguments."""
    if callable(target):
        raise SpecError(
            "a function of this process is not in the image",
            hint='name it as the image has it: "/app/train.py::function", or leave in_image out',
        )
    words = [str(target)] if isinstance(target, (str, Path)) else [str(word) for word in target]
    if not words or not words[0]:
        raise SpecError("nothing to run", hint="windlass run --in-image /app/train.py")
    if "::" in words[0]:
        return _read_function(words, args, kwargs or {})
    if kwargs:
        raise SpecError(
            f"keyword arguments go to functions, not to {words[0]}",
            hint="use args=[...], or FILE.py::FUNCTION",
        )
    words = [*words[0].split(maxsplit=1), *words[1:]] if words[0].startswith("-m ") else words
    words += [str(arg) for arg in args]
    if words[0] == "-m":
        if len(words) < 2:
            raise SpecError("-m needs the name of a module", hint="-m package.module")
        return WorkTarget(work=Module(name=words[1], args=tuple(words[2:])), preload=())
    if words[0].endswith(".py"):
        return WorkTarget(work=Script(path=words[0], args=tuple(words[1:])), preload=())
    return WorkTarget(work=Command(argv=tuple(words)), preload=())


def _read_function(words: list[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> WorkTarget:
    file, _, name = words[0].partition("::")
    if not file or not name.isidentifier():
        raise SpecError(f"{words[0]!r} does not name a function", hint="write FILE.py::FUNCTION")
    payload = pickling.dump((None, (*words[1:], *args), dict(kwargs)), name="arguments")
    return WorkTarget(work=Function(name=name, file=file), payload=payload, preload=())
