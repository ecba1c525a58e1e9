"""Table of verbs with modules and help lines, and the click groups that import them on use.

`windlass --help` is drawn from the table alone, so it imports no verb. Mistyped verbs get a suggestion.
Imports click and nothing that a verb needs.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Mapping

import click
from click.shell_completion import CompletionItem

from windlass import __version__
from windlass.near_names import did_you_mean

# characters at which click does not break a line, for those at which it does
_UNBREAKABLE = ((" ", "\xa0"), ("-", "\u2011"))

# verbs of other tools, and the verb that does the same here
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
VERBS = {
    "run": (
        "windlass.cli.verbs.run:run",
        "Run a script, function, module or command on every rank.",
    ),
    "deploy": (
        "windlass.cli.verbs.deploy:deploy",
        "Deploy a script's decorated functions and apps.",
    ),
    "call": ("windlass.cli.verbs.call:call", "Call a deployed function or method by its name."),
    "compute": (
        "windlass.cli.verbs.compute:compute",
        "List, end and resize computes (warm nodes).",
    ),
    "ls": ("windlass.cli.verbs.ls:ls", "List jobs, newest first."),
    "status": ("windlass.cli.verbs.status:status", "Show the state of a job."),
    "why": (
        "windlass.cli.verbs.status:why",
        "Explain in one sentence why a job is pending or has failed.",
    ),
    "logs": ("windlass.cli.verbs.logs:logs", "Print or follow the output of the ranks."),
    "wait": ("windlass.cli.verbs.attach:wait", "Wait until a job has ended."),
    "result": ("windlass.cli.verbs.result:result", "Print what each rank returned or raised."),
    "report": (
        "windlass.cli.verbs.report:report",
        "Compare the throughput and efficiency of training runs.",
    ),
    "attach": ("windlass.cli.verbs.attach:attach", "Watch a running job from any terminal."),
    "port-forward": (
        "windlass.cli.verbs.attach:port_forward",
        "Forward a local port to node 0 of a job.",
    ),
    "cancel": ("windlass.cli.verbs.cancel:cancel", "Cancel jobs, and wait until they have ended."),
    "rm": ("windlass.cli.verbs.cancel:rm", "Remove ended jobs with their logs and results."),
    "export": ("windlass.cli.verbs.export:export", "Print a job as YAML without starting it."),
    "image": ("windlass.cli.verbs.image:image", "Print the Dockerfile of an Image."),
    "doctor": (
        "windlass.cli.verbs.doctor:doctor",
        "Check that this machine or a cluster can run jobs.",
    ),
    "engines": (
        "windlass.cli.verbs.engines:engines",
        "List engines, their requirements and their features.",
    ),
    "conformance": (
        "windlass.cli.verbs.conformance:conformance",
        "Run the contract tests on an engine.",
    ),
    "config": ("windlass.cli.verbs.config:config", "Show or change settings."),
    "completion": (
        "windlass.cli.verbs.completion:completion",
        "Print a shell completion script.",
    ),
    "version": ("windlass.cli.verbs.config:version", "Print the version."),
}


class Verb(click.Command):
    """One command. Its `--help` follows the style of the other help texts."""

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        option = super().get_help_option(ctx)
        if option is not None:
            option.help = "Show this message and exit"
        return option

    def get_help(self, ctx: click.Context) -> str:
        shown = super().get_help(ctx)
        for usual, special in _UNBREAKABLE:
            shown = shown.replace(special, usual)
        return shown


def keep_together(text: str) -> str:
    """Return the text so that the help of a `Verb` does not break it over two lines."""
    for usual, special in _UNBREAKABLE:
        text = text.replace(usual, special)
    return text


class LazyGroup(Verb, click.Group):
    """Group that imports a command on use, from `module:attribute`. The table has the help lines."""

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
        except BrokenPipeError:  # click would exit with 1, but `| head` is not a failure
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


class NearGroup(Verb, click.Group):
    """Verb with subcommands, all defined in its own file."""

    command_class = Verb

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
    """Redirect stdout to devnull, so that buffered output cannot raise when Python exits."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class UnknownCommand(click.UsageError):
    """Error for an unknown verb, with the nearest known verb as its hint."""

    def __init__(self, name: str, known: tuple[str, ...], ctx: click.Context) -> None:
        super().__init__(f"unknown command {name!r}", ctx)
        path = ctx.command_path
        is_target = name.endswith(".py") or "::" in name
        otherwise = (
            f"did you mean `windlass run {name}`?"
            if is_target
            else f"run `{path} --help` to list them"
        )
        meant = MEANINGS.get(name, "")
        if meant.partition(" ")[0] in known:
            self.hint = f"did you mean `{path} {meant}`?"
            return
        self.hint = did_you_mean(
            name, known, otherwise, show=lambda verb: f"`{path} {verb}`", alike=0.5
        )


def _show_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"windlass {__version__}")
        ctx.exit()


def _show_help(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


cli = LazyGroup(
    name="windlass",
    verbs=VERBS,
    help="Run a PyTorch function or script on any number of machines, unchanged.",
    epilog="Run `windlass COMMAND --help` for its flags. Data goes to stdout, and messages to stderr.",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    callback=click.pass_context(_show_help),
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_version,
            help="Print the version and exit",
        )
    ],
)
