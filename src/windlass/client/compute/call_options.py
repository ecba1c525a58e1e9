"""How calls are made: the options of a remote callable, checked when they are given. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from windlass.errors import SpecError
from windlass.near_names import did_you_mean
from windlass.settings.durations import read_duration

_COLLECTS = ("all", "head")
_KEEPS = ("", "process")
_RELOADS = ("auto", "never")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How calls are made."""

    timeout: float | None = None
    stream: bool = False
    collect: str = "all"
    ranks: tuple[int, ...] | None = None
    keep: str = ""
    reload: str = "auto"
    logs: bool = True

    def __post_init__(self) -> None:
        for name, value, known in (
            ("collect", self.collect, _COLLECTS),
            ("keep", self.keep, _KEEPS),
            ("reload", self.reload, _RELOADS),
        ):
            if value not in known:
                shown = ", ".join(repr(word) for word in known if word)
                raise SpecError(f"{name} cannot be {value!r}", hint=f"there is {shown}")
        if self.timeout is not None:
            timeout_s = read_duration(self.timeout)
            if not timeout_s > 0:
                raise SpecError(f"timeout must be more than 0, not {self.timeout}")
            object.__setattr__(self, "timeout", timeout_s)


def make_options(given: Mapping[str, Any], before: Options | None = None) -> Options:
    """Options from keywords, on top of those `before`."""
    known = ("name", "init_args", *Options.__dataclass_fields__)
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known, show=repr)
            raise SpecError(f"there is no option {name!r}", hint=hint)
    options = dict(given)
    if options.get("ranks") is not None:
        options["ranks"] = _read_ranks(options["ranks"])
    options["keep"] = options.get("keep") or (before.keep if before else "")
    return replace(before or Options(), **options)


def _read_ranks(given: Any) -> tuple[int, ...]:
    ranks = (given,) if isinstance(given, int) else given
    is_list = isinstance(ranks, (list, tuple, range, set, frozenset))
    if not is_list or not ranks or not all(type(rank) is int and rank >= 0 for rank in ranks):
        raise SpecError(f"ranks={given!r:.60} names no ranks", hint="ranks=[0, 3]")
    return tuple(sorted(set(ranks)))
