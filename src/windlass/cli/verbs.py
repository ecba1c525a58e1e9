"""The table of verbs: where each lives, and its line of help. And the group that holds them.

Imports click and nothing that a verb needs: `windlass --help` must be quick. What a verb does is in its own
file.
"""

from __future__ import annotations

import click

from windlass import __version__
from windlass.cli.lazy_group import LazyGroup

VERBS = {
    "run": ("windlass.cli.run:run", "Run a script, function, module or command on every rank."),
    "deploy": ("windlass.cli.deploy:deploy", "Bring up a script's decorated functions and apps."),
    "call": ("windlass.cli.call:call", "Call a deployed function or method by its name."),
    "compute": ("windlass.cli.compute:compute", "List, end and resize computes: warm nodes."),
    "ls": ("windlass.cli.ls:ls", "List jobs, newest first."),
    "status": ("windlass.cli.status:status", "Show a job's state: ranks, progress, verdict."),
    "why": ("windlass.cli.why:why", "Say why a job waits, runs or failed, in one sentence."),
    "logs": ("windlass.cli.logs:logs", "Print the ranks' output, or follow it."),
    "wait": ("windlass.cli.wait:wait", "Wait until a job has ended; exits as the job did."),
    "result": ("windlass.cli.result:result", "Print what each rank returned or raised."),
    "report": (
        "windlass.cli.report:report",
        "Compare trainings: throughput, efficiency, waits, lost time.",
    ),
    "attach": ("windlass.cli.attach:attach", "Watch a running job from any terminal."),
    "port-forward": (
        "windlass.cli.port_forward:port_forward",
        "Lead a port of this machine to one of a job's node 0.",
    ),
    "cancel": ("windlass.cli.cancel:cancel", "End jobs, and wait until they have ended."),
    "rm": ("windlass.cli.rm:rm", "Remove ended jobs with their logs and results."),
    "export": ("windlass.cli.export:export", "Print what would be started, as YAML."),
    "image": ("windlass.cli.image:image", "Print the Dockerfile of an Image's steps."),
    "doctor": ("windlass.cli.doctor:doctor", "Show what is here, what is missing, how to get it."),
    "engines": ("windlass.cli.engines:engines", "List engines: needs, version found, abilities."),
    "conformance": (
        "windlass.cli.conformance:conformance",
        "Run the contract suite on an engine: a table of cases.",
    ),
    "config": ("windlass.cli.config:config", "Show each setting and where it came from."),
    "completion": ("windlass.cli.completion:completion", "Print a shell's completion script."),
    "version": ("windlass.cli.version:version", "Print the version."),
}


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
    epilog="windlass VERB --help shows more. Data goes to stdout, messages to stderr.",
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
            help="Print the version and exit.",
        )
    ],
)
