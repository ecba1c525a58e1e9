"""The entry point: runs one command, and is the end of every exception.

Imports next to nothing itself, so that a Ctrl-C while Python is still loading ends as quietly as any other.
The verbs are in cli.verbs; how an error is told is in cli.trouble.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    try:
        if argv is None and sys.argv[1:2] == ["run"]:
            from windlass.engines.launch import begin_head_start

            begin_head_start(sys.argv[2:])
        return _run(None if argv is None else list(argv))
    except KeyboardInterrupt:
        return 130


def _run(argv: list[str] | None) -> int:
    import click

    from windlass import names
    from windlass.cli.verbs import cli

    _forgive_encodings()
    try:
        code = cli.main(argv, prog_name="windlass", standalone_mode=False)
    except click.Abort:
        return names.EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the one place where all of them end
        from windlass.cli.trouble import report

        return report(error)
    return code if isinstance(code, int) else names.EXIT_OK


def _forgive_encodings() -> None:
    """A letter that a terminal cannot show is shown as its number."""
    import io

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
