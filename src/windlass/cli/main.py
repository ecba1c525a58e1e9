"""Entry point of `windlass`: runs one command and handles every exception.

Imports almost nothing at the top, so that a Ctrl-C while Python is still loading exits quietly.
`cli.verb_table` lists the verbs, and `cli.error_output` reports errors.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        if argv is None and sys.argv[1:2] == ["run"]:
            _begin_head_start(sys.argv[2:])
        return _run(None if argv is None else list(argv))
    except KeyboardInterrupt:
        return 130


def _run(argv: list[str] | None) -> int:
    import click

    from windlass import names
    from windlass.cli.verb_table import cli

    _forgive_streams()
    try:
        code = cli.main(argv, prog_name="windlass", standalone_mode=False)
    except click.Abort:
        return names.EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 - every exception is handled here
        from windlass.cli.error_output import report_error

        return report_error(error)
    return code if isinstance(code, int) else names.EXIT_OK


def _begin_head_start(words: list[str]) -> None:
    """Start the processes that `run` will most likely need. Errors are ignored, as `run` reports them."""
    import contextlib

    with contextlib.suppress(Exception):
        from windlass.engines.local.local_agents import begin_head_start

        begin_head_start(words)


def _forgive_streams() -> None:
    """Replace closed standard streams with devnull, and escape characters that a stream cannot encode."""
    import io
    import os

    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - for the life of the process
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
