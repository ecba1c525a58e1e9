"""What can be called on a compute: a function, a command, or the object of a class, as a user gave it.

Read once, from what was given and from its source; what one call of it is made of is
`client.compute.call_request`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from windlass.agent.rank import command_call
from windlass.client.compute.check_values import read_words
from windlass.client.jobs.early_env import find_early_write
from windlass.client.jobs.job_ids import make_letters
from windlass.client.jobs.launcher_size import tell_size
from windlass.client.jobs.preload import TORCH, choose_preload
from windlass.client.jobs.target import function_name, travels_alone, unwrap
from windlass.errors import SpecError
from windlass.spec.launchers import find_launcher
from windlass.spec.work import Command

# what a remote callable has itself, under names that a class may have, too
REMOTE_NAMES = (
    *("name", "compute", "rebuild", "to", "distribute", "options", "deploy", "teardown"),
    *("submit", "acall"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is called: a function, a command, or the object of a class."""

    target: Any
    name: str
    is_class: bool = False
    is_command: bool = False
    init: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    source: Path | None = None
    preload: tuple[str, ...] = ()
    early: str = ""  # what it sets before it imports torch, which must not be there already
    instance: str = field(default_factory=lambda: make_letters(12))
    clashes: tuple[str, ...] = ()  # what the class has under names that a remote object has, too
    has_call: bool = False  # whether objects of the class can be called themselves

    @property
    def label(self) -> str:
        """For names: the last part."""
        return self.name.rpartition(".")[2].strip("<>") or "call"

    def parameters(self, method: str) -> Sequence[str]:
        """The names of the parameters that are the work's own."""
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
    """The work a user means."""
    if isinstance(target, str):
        words = read_words(target, "the command", example='fn("nvidia-smi")')
        run = command_call.CommandCall(words)
        return Work(target=run, name=name or Path(words[0]).stem, is_command=True)
    if not callable(target):
        raise SpecError(
            f"cannot call {target!r:.60}", hint="give a function, a class, or a command as text"
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


def fit_command(work: Work, num_nodes: int, procs: int) -> Work:
    """A launcher's line, told of its size by the launcher's own flags where it has no variables for it."""
    command = Command(argv=tuple(work.target.words), procs=procs)
    line = find_launcher(command.argv)
    if line is None:
        return work
    words = tell_size(command, line, num_nodes).argv
    return work if words == command.argv else replace(work, target=command_call.CommandCall(words))


def _unwrap(target: Any) -> Any:
    """The function inside partials and decorators: its module says where the project is."""
    return inspect.unwrap(unwrap(target))


def _find_early(plain: Any, source: Path | None) -> str:
    if source is None or not source.is_file():
        return ""
    name = plain.__name__ if travels_alone(plain) else ""
    early = find_early_write([source], source.parent, function=name)
    return str(early) if early else ""


def _choose_preload(source: Path | None) -> tuple[str, ...]:
    if source is None or not source.is_file():
        return TORCH if "torch" in sys.modules else ()
    return choose_preload(source)


def first_method(target: Any) -> str:
    """A method of a class, to name one in a hint."""
    members = vars(target).items() if inspect.isclass(target) else ()
    names = [name for name, value in members if callable(value) and not name.startswith("_")]
    return names[0] if names else "method"
