"""The one table of frameworks: their names, and where each is. A framework is imported when it is used."""

from __future__ import annotations

import functools
import importlib

from windlass.errors import SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from windlass.agent.frameworks.framework import Framework

FRAMEWORKS = {
    "pytorch": "windlass.agent.frameworks.pytorch",
    "spmd": "windlass.agent.frameworks.spmd",
    "command": "windlass.agent.frameworks.command",
    "ray": "windlass.agent.frameworks.ray",
    "monarch": "windlass.agent.frameworks.monarch",
}


@functools.cache
def load_framework(name: str) -> Framework:
    """The framework of a plan or a call."""
    check_framework(name)
    framework: Framework = importlib.import_module(FRAMEWORKS[name]).FRAMEWORK
    return framework


def choose_framework(asked: str, *, is_command: bool) -> Framework:
    """The framework that runs some work, from the one that was asked for; empty: the work's own."""
    from windlass.spec.work import Command, Function

    framework = load_framework(asked or (Command if is_command else Function).framework)
    if is_command and not framework.takes_commands:
        return load_framework(Command.framework)
    return framework


def check_framework(name: str) -> None:
    """Refuse an unknown name, and suggest the nearest one."""
    if name in FRAMEWORKS:
        return
    from windlass.near_names import did_you_mean

    hint = did_you_mean(str(name), FRAMEWORKS, show=repr)
    raise SpecError(f"there is no framework {name!r}", hint=hint)
