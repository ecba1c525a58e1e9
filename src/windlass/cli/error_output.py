"""Error output of the command line: two lines on stderr and an exit code, or the verdict of a job.

All exceptions are reported here. Errors of Windlass are shown with their hint, and those of click in the same
form. Other exceptions are shown without a traceback, unless WINDLASS_DEBUG is set.
"""

from __future__ import annotations

import os
import sys
import traceback

import click

from windlass import names
from windlass.cli.verb_table import close_stdout
from windlass.client.terminal import clean, print_notice
from windlass.errors import WindlassError
from windlass.near_names import did_you_mean
from windlass.settings import start_folder
from windlass.wire.status import JobStatus

DEBUG = "WINDLASS_DEBUG"


def report_error(error: Exception) -> int:
    """Print an error to stderr, and return its exit code."""
    if os.environ.get(DEBUG):
        traceback.print_exception(error)
    if isinstance(error, WindlassError):
        say_error(error.message, error.hint or ("try again" if error.retryable else ""))
        return error.exit_code
    if isinstance(error, click.ClickException):
        say_error(*_describe_usage(error))
        return names.EXIT_USAGE
    if isinstance(error, OSError) and error.strerror:
        if error.filename is None:  # most likely, writing the output failed
            close_stdout()
        where = f"{error.filename}: " if error.filename else ""
        say_error(f"{where}{error.strerror}", "run `windlass doctor` to see what is missing here")
        return names.EXIT_ENGINE
    say_error(
        f"unexpected {type(error).__name__}: {error}",
        f"this is a bug in Windlass; set {DEBUG}=1 to see the full traceback",
    )
    return names.EXIT_ENGINE


def say_error(message: str, hint: str = "") -> None:
    """Print `windlass: message` and the hint."""
    print_notice(message)
    if hint:
        sys.stderr.write(f"  hint: {clean(hint, color=False)}\n")


def say_verdict(status: JobStatus) -> None:
    """Print to stderr why a job failed."""
    from windlass.observe.explain import render_verdict

    sys.stderr.write(render_verdict(status, folder=str(start_folder())) + "\n")


def _describe_usage(error: click.ClickException) -> tuple[str, str]:
    hint = str(getattr(error, "hint", ""))
    ctx = getattr(error, "ctx", None)
    usage = ctx.command.get_usage(ctx).replace("Usage:", "usage:") if ctx else ""
    if isinstance(error, click.NoSuchOption):
        params = ctx.command.get_params(ctx) if ctx else ()
        options = [option for param in params for option in param.opts]
        return f"unknown option {error.option_name}", did_you_mean(
            error.option_name, options, usage or "--help lists them"
        )
    if isinstance(error, click.MissingParameter) and error.param is not None:
        return f"{getattr(error.param, 'metavar', None) or error.param.name} is missing", usage
    return error.format_message().rstrip("."), hint or usage
