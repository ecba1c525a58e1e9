"""A group of commands that are imported when they are called, and their names put right when mistyped.

`--help` is drawn from the table alone, so it costs no imports. Knows click; nothing of jobs.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Mapping

import click
from click.shell_completion import CompletionItem

from windlass.near_names import did_you_mean

# verbs of other tools, and ours for the same
MEANINGS = {
    **dict.fromkeys(("kill", "stop", "abort", "terminate"), "cancel"),
    **dict.fromkeys(("submit", "launch", "start", "exec", "torchrun"), "run"),
    **dict.fromkeys(("delete", "del", "remove", "clean", "prune"), "rm"),
    **dict.fromkeys(("tail", "follow"), "logs -f"),
    **dict.fromkeys(("ps", "list", "jobs", "get", "queue"), "ls"),
    **dict.fromkeys(("describe", "show", "info", "inspect"), "status"),
    **dict.fromkeys(("apply", "serve"), "deploy"),
    **dict.fromkeys(("output", "fetch"), "result"),
    **dict.fromkeys(("explain",), "why"),
    **dict.fromkeys(("settings",), "config"),
}


class LazyGroup(click.Group):
    """Commands by name: where each lives (`module:attribute`), and its line of help."""

    def __init__(self, *, verbs: Mapping[str, tuple[str, str]], **attributes: object) -> None:
        super().__init__(**attributes)  # type: ignore[arg-type]
        self._verbs = verbs

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(self._verbs)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._verbs:
            return None
        module, _, attribute = self._verbs[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._verbs.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in self._verbs or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        raise _refuse(name, tuple(self._verbs), ctx)

    def invoke(self, ctx: click.Context) -> object:
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:  # caught here since click would exit 1: `| head` is no failure
            close_stdout()
            return 0
        return code

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        return [
            CompletionItem(name, help=text)
            for name, (_, text) in self._verbs.items()
            if name.startswith(incomplete)
        ]


class NearGroup(click.Group):
    """A verb with verbs of its own, which are all in its file."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in self.commands or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        raise _refuse(args[0], tuple(self.commands), ctx)


def _refuse(name: str, known: tuple[str, ...], ctx: click.Context) -> click.UsageError:
    if name.startswith("-"):
        return click.NoSuchOption(name, ctx=ctx)
    return UnknownCommand(name, known, ctx)


def close_stdout() -> None:
    """Nobody reads on: what is still buffered must not raise when Python ends."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class UnknownCommand(click.UsageError):
    """A verb that is not there, with the nearest that is."""

    def __init__(self, name: str, known: tuple[str, ...], ctx: click.Context) -> None:
        super().__init__(f"there is no command {name!r}", ctx)
        path = ctx.command_path
        is_target = name.endswith(".py") or "::" in name
        otherwise = (
            f"did you mean windlass run {name}?" if is_target else f"{path} --help lists them"
        )
        meant = MEANINGS.get(name, "")
        if meant.partition(" ")[0] in known:
            self.hint = f"did you mean {path} {meant}?"
            return
        self.hint = did_you_mean(
            name, known, otherwise, show=lambda verb: f"{path} {verb}", alike=0.5
        )
