"""Help, default settings and error reports that the recipes' programs share. Imports no torch."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from windlass import names
from windlass.errors import EngineError, SpecError
from windlass.train.trainer.trainer_options import TrainerOptions, describe_flags, is_help_requested

RUN_ID = {"run_id": "run"}  # torchrun consumes --run itself, wherever it appears
OUT_CLAIM = "/out"  # where the guides mount a claim for outputs


def end_with_help(
    words: Sequence[str],
    about: str | None,
    options_type: type[TrainerOptions],
    *,
    hidden: Collection[str] = (),
) -> None:
    """Print the program's description and its flags with defaults, then exit, if help was requested."""
    if is_help_requested(words):
        sys.stdout.write(f"{about or ''}\n{describe_flags(options_type, {}, hidden=hidden)}")
        raise SystemExit(0)


def rename_flags(words: Sequence[str], aliases: Mapping[str, str]) -> list[str]:
    """Replace aliases of flags by the names used here. `aliases` uses _ instead of -."""
    renamed = []
    for word in words:
        flag, equals, value = word.partition("=")
        key = flag[2:].replace("-", "_") if flag.startswith("--") else ""
        renamed.append(f"--{aliases[key]}{equals}{value}" if key in aliases else word)
    return renamed


def guess_out(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the default of `out`: the mounted claim for outputs, unless the launcher sets another folder."""
    has_claim = os.path.isdir(OUT_CLAIM) and os.access(OUT_CLAIM, os.W_OK)
    return {"out": OUT_CLAIM} if has_claim and not environ.get(names.OUT) else {}


def guess_trackers(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the default of `trackers`: MLflow if its URI is set."""
    return {"trackers": ("mlflow",)} if environ.get("MLFLOW_TRACKING_URI") else {}


def check_writable(folder: Path) -> None:
    """Create a folder for outputs, and raise SpecError if it is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        problem = "" if os.access(folder, os.W_OK) else "permission denied"
    except OSError as error:
        problem = error.strerror or str(error)
    if problem:
        raise SpecError(
            f"cannot write to {folder}: {problem}",
            hint="pass another folder with --out; in a pod, check that its user can write to the volume",
        )


@contextlib.contextmanager
def explain_unwritten(what: str) -> Iterator[None]:
    """Raise EngineError with the system's reason if a file cannot be written, and with how to continue."""
    try:
        yield
    except OSError as error:
        raise EngineError(
            f"cannot write {what}: {error.strerror or error}",
            hint="free some space there and run the same command again; it resumes and writes the file",
        ) from error


def exit_on_error(main: Callable[..., None]) -> Callable[..., None]:
    """Decorate a main function to print SpecError and EngineError without a traceback, and to exit."""

    @functools.wraps(main)
    def call(*args: Any, **kwargs: Any) -> None:
        try:
            main(*args, **kwargs)
        except (SpecError, EngineError) as error:
            sys.stderr.write(f"error: {error}\n")
            raise SystemExit(error.exit_code) from error

    return call


def import_or_explain(library: str, extra: str) -> None:
    """Import a library, or raise SpecError with the command that installs it."""
    try:
        importlib.import_module(library)
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        raise SpecError(
            f"{library} is not installed here",
            hint=f"run `pip install '{extra}'`, or use an image that has it",
        ) from error
