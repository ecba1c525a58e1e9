"""Callables of a compute (a function, a command, or an object of a class) and the call options.

Both are read and checked once, when they are given. `windlass.client.compute.calls.call_requests` makes the
requests of single calls from them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from windlass.client.compute.nodes.compute_keywords import read_words
from windlass.client.jobs.job_ids import make_letters
from windlass.client.jobs.launcher_size import add_size_flags
from windlass.client.jobs.source_analysis import TORCH, choose_preload, find_early_write
from windlass.client.jobs.target import function_name, is_self_contained, unwrap_partial
from windlass.errors import SpecError
from windlass.near_names import did_you_mean
from windlass.settings.reading import read_duration
from windlass.spec.launchers import find_launcher
from windlass.spec.work import Command
from windlass.wire import call_targets

_COLLECTS = ("all", "head")
_KEEPS = ("", "process")
_RELOADS = ("auto", "never")
# attributes of a remote callable. A user's class may use the same names.
REMOTE_NAMES = (
    *("name", "compute", "rebuild", "to", "distribute", "options", "deploy", "teardown"),
    *("submit", "acall"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of calls, checked."""

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
                raise SpecError(f"invalid {name} {value!r}", hint=f"{name} accepts {shown}")
        if self.timeout is not None:
            timeout_s = read_duration(self.timeout)
            if not timeout_s > 0:
                raise SpecError(
                    f"timeout must be greater than 0, not {self.timeout}",
                    hint='use a value such as 30 or "5m"',
                )
            object.__setattr__(self, "timeout", timeout_s)


def make_options(given: Mapping[str, Any], before: Options | None = None) -> Options:
    """Return options from keywords. Omitted keywords keep their value in `before`."""
    known = ("name", "init_args", *Options.__dataclass_fields__)
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known, show=repr)
            raise SpecError(f"unknown option {name!r}", hint=hint)
    options = dict(given)
    if options.get("ranks") is not None:
        options["ranks"] = _read_ranks(options["ranks"])
    options["keep"] = options.get("keep") or (before.keep if before else "")
    return replace(before or Options(), **options)


def _read_ranks(given: Any) -> tuple[int, ...]:
    ranks = (given,) if isinstance(given, int) else given
    is_list = isinstance(ranks, (list, tuple, range, set, frozenset))
    if not is_list or not ranks or not all(type(rank) is int and rank >= 0 for rank in ranks):
        raise SpecError(
            f"invalid ranks {given!r:.60}", hint="use a list of ranks such as ranks=[0, 3]"
        )
    return tuple(sorted(set(ranks)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A callable: a function, a command, or an object of a class."""

    target: Any
    name: str
    is_class: bool = False
    is_command: bool = False
    init: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    source: Path | None = None
    preload: tuple[str, ...] = ()
    early: str = ""  # variable that it sets before importing torch, so torch must not be preloaded
    instance: str = field(default_factory=lambda: make_letters(12))
    clashes: tuple[str, ...] = ()  # attributes of the class that share a name in REMOTE_NAMES
    has_call: bool = False  # whether the class defines __call__

    @property
    def label(self) -> str:
        """Last part of the name, for names of computes."""
        return self.name.rpartition(".")[2].strip("<>") or "call"

    def parameters(self, method: str) -> Sequence[str]:
        """Return the parameter names of the callable, or of one of its methods."""
        target = getattr(self.target, method, None) if method else self.target
        try:
            parameters = inspect.signature(target).parameters  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return ()
        return tuple(parameters)


def make_work(
    target: Any,
    *,
    name: str = "",
    init: tuple[tuple[Any, ...], dict[str, Any]] = ((), {}),
) -> Work:
    """Return the work for a function, a class, or a command given as text."""
    if isinstance(target, str):
        words = read_words(target, "the command", example='use fn("nvidia-smi")')
        run = call_targets.CommandCall(words)
        return Work(target=run, name=name or Path(words[0]).stem, is_command=True)
    if not callable(target):
        raise SpecError(
            f"cannot call {target!r:.60}", hint="pass a function, a class, or a command as a string"
        )
    is_class = inspect.isclass(target) or bool(getattr(target, "is_class", False))
    plain = target if inspect.isclass(target) else _unwrap(target)
    module = sys.modules.get(getattr(plain, "__module__", "") or "")
    file = getattr(module, "__file__", None)
    source = Path(file) if file else None
    early = _find_early(plain, source)
    return Work(
        target=target,
        name=name or function_name(plain),
        is_class=is_class,
        init=init,
        source=source,
        preload=() if early else _choose_preload(source),
        early=early,
        clashes=_find_clashes(inspect.unwrap(target)) if is_class else (),
        has_call=is_class and any("__call__" in vars(b) for b in inspect.unwrap(target).__mro__),
    )


def _find_clashes(target: Any) -> tuple[str, ...]:
    own = {name for base in target.__mro__[:-1] for name in vars(base)}
    return tuple(name for name in REMOTE_NAMES if name in own)


def fit_called_command(work: Work, num_nodes: int, procs: int) -> Work:
    """Add the launcher's size flags to a launcher command if it reads no variables for its size."""
    command = Command(argv=tuple(work.target.words), procs=procs)
    line = find_launcher(command.argv)
    if line is None:
        return work
    words = add_size_flags(command, line, num_nodes).argv
    return work if words == command.argv else replace(work, target=call_targets.CommandCall(words))


def _unwrap(target: Any) -> Any:
    """Return the function inside partials and decorators. The project is found by its module."""
    return inspect.unwrap(unwrap_partial(target))


def _find_early(plain: Any, source: Path | None) -> str:
    if source is None or not source.is_file():
        return ""
    name = plain.__name__ if is_self_contained(plain) else ""
    early = find_early_write([source], source.parent, function=name)
    return str(early) if early else ""


def _choose_preload(source: Path | None) -> tuple[str, ...]:
    if source is None or not source.is_file():
        return TORCH if "torch" in sys.modules else ()
    return choose_preload(source)


def first_method(target: Any) -> str:
    """Return the name of a method of a class, for a hint."""
    members = vars(target).items() if inspect.isclass(target) else ()
    names = [name for name, value in members if callable(value) and not name.startswith("_")]
    return names[0] if names else "method"
