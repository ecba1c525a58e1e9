"""`windlass completion`: a shell script that asks `windlass` itself for completions.

Verbs and flags come from the commands, and job IDs from the known jobs.
"""

from __future__ import annotations

import sys

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from windlass.cli.verb_table import Verb
from windlass.client.terminal import is_terminal, print_notice

_VARIABLE = "_WINDLASS_COMPLETE"
_SHELLS: dict[str, type[ShellComplete]] = {
    "bash": BashComplete,
    "zsh": ZshComplete,
    "fish": FishComplete,
}
_WHERE = {
    "bash": 'eval "$(windlass completion bash)"    # in ~/.bashrc',
    "zsh": 'eval "$(windlass completion zsh)"    # in ~/.zshrc, after compinit',
    "fish": "windlass completion fish | source    # in ~/.config/fish/config.fish",
}


@click.command(cls=Verb)
@click.argument("shell", metavar="SHELL", type=click.Choice(list(_SHELLS)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL, which is bash, zsh or fish.

    Add one of these lines to the startup file of your shell:

    \b
    eval "$(windlass completion bash)"      # in ~/.bashrc
    eval "$(windlass completion zsh)"       # in ~/.zshrc, after compinit
    windlass completion fish | source       # in ~/.config/fish/config.fish
    """  # noqa: D301 - click needs the backspace
    script = _SHELLS[shell](ctx.find_root().command, {}, "windlass", _VARIABLE).source()
    click.echo(script)
    if is_terminal(sys.stdout):
        print_notice(f"to use it: {_WHERE[shell]}")
