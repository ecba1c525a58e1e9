"""What `export --plain` prints for an engine: its kind of object, its own launcher, no Windlass inside."""

from __future__ import annotations

import importlib
from typing import Any, Protocol

from windlass.errors import SpecError
from windlass.kube.objects.torchrun_pods import Rendezvous
from windlass.plan.plan import Plan

_PLAIN = {
    "kubernetes": "windlass.engines.exports.torchrun_job:make_plain",
    "monarchmesh": "windlass.engines.exports.monarch_workers:make_plain",
    "pytorchjob": "windlass.engines.exports.torchrun_pytorchjob:make_plain",
    "trainjob": "windlass.engines.exports.torchrun_trainjob:make_plain",
}
# For operators that are older than a version.
_OLDER = {
    "trainjob": ((2, 2), "windlass.engines.exports.torchrun_trainjob:make_older_plain"),
}


class MakePlain(Protocol):
    """Documents in the order in which they can be applied. Pure."""

    def __call__(
        self,
        plan: Plan,
        *,
        script: str | None,
        rendezvous: Rendezvous,
        flags: tuple[str, ...] = (),
    ) -> list[dict[str, Any]]: ...


def load_plain(engine: str, version: str = "") -> MakePlain:
    """What makes the documents for the engine of that name, imported on use.

    `version` is its operator's, like 2.1; none: the newest.
    """
    if engine not in _PLAIN:
        raise SpecError(
            f"what the engine {engine} makes has no launcher of its own",
            hint=f"leave out --plain, or name another engine: {', '.join(_PLAIN)}",
        )
    since, older = _OLDER.get(engine, ((), ""))
    is_older = bool(version) and _read_version(version) < since
    module, _, attribute = (older if is_older else _PLAIN[engine]).partition(":")
    make_plain: MakePlain = getattr(importlib.import_module(module), attribute)
    return make_plain


def _read_version(text: str) -> tuple[int, ...]:
    numbers = text.removeprefix("v").split(".")[:2]
    if not all(number.isdecimal() for number in numbers):
        raise SpecError(f"{text!r} is no version of an operator", hint="give it like 2.1")
    return tuple(map(int, numbers))
