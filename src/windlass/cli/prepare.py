"""From the words of a command line to a prepared job: `run` and `export` share it.

A function's own parameters are read here as flags; scripts, modules and commands get their words as they
are. Everything else is `client.jobs.run.prepare`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from windlass.agent.frameworks.framework_table import choose_framework
from windlass.cli.argv_split import SplitWords
from windlass.cli.flags import load_settings
from windlass.client.jobs.launcher_size import is_torchrun
from windlass.client.jobs.run import Prepared, check_honoured, prepare
from windlass.client.jobs.target import find_script, read_target
from windlass.client.terminal import say
from windlass.errors import SpecError
from windlass.spec.launchers import find_launcher, translate_flag
from windlass.spec.work import Command

if TYPE_CHECKING:  # reading functions takes parsers that no other target needs
    from windlass.cli.signature import Signature


def prepare_words(words: SplitWords, *, detach: bool, flags: Mapping[str, Any]) -> Prepared:
    """The job that was asked for, decided but not started."""
    if not words.target:
        raise SpecError(
            "there is nothing to run",
            hint=f"windlass {_verb()} train.py, train.py::function, -m module or any command",
        )
    prepared = _prepare(words, detach=detach, flags=flags)
    if _verb() != "export":  # which says itself that it needs another engine
        check_honoured(prepared)
    return prepared


def _prepare(words: SplitWords, *, detach: bool, flags: Mapping[str, Any]) -> Prepared:
    if words.is_function:
        args, kwargs = _read_blind(words) if _is_in_image(flags) else _read_call(words, flags)
        return prepare(words.target[0], args, kwargs, detach=detach, flags=flags)
    sources = () if _is_in_image(flags) else _find_sources(words)
    _check_late(words, sources)
    _check_loose(words, sources)
    return prepare([*words.target, *words.rest], detach=detach, flags=flags)


def _verb() -> str:
    """Return the verb that was typed: `run` or `export`."""
    context = click.get_current_context(silent=True)
    return (context.info_name if context else None) or "run"


def _is_in_image(flags: Mapping[str, Any]) -> bool:
    given = flags.get("in_image")
    return bool(load_settings().in_image if given is None else given)


def _read_blind(words: SplitWords) -> tuple[Sequence[object], Mapping[str, object]]:
    from windlass.cli.untyped_args import read_blind

    return read_blind(words.rest)


def _find_sources(words: SplitWords) -> Sequence[Path]:
    """Return the script of a target, or of a command that names one, if a word may be its own."""
    if not words.late and not any(word.startswith("--") for word in words.loose):
        return ()
    target = read_target([*words.target, *words.rest], cwd=Path.cwd(), is_local=False)
    if target.source:
        return (target.source,)
    if not isinstance(target.work, Command):
        return ()
    scripts = [Path.cwd() / word for word in words.rest if word.endswith(".py")]
    return [path for path in scripts if path.is_file()][:1]


def _check_late(words: SplitWords, sources: Sequence[Path]) -> None:
    """Check flags of ours behind a script, a module, or a command that names a script."""
    if not words.late:
        return
    from windlass.cli.flag_clash import check_clash

    for source in sources:
        check_clash(words.late, source, _name_target(words, source), verb=_verb())


def _check_loose(words: SplitWords, sources: Sequence[Path]) -> None:
    """Refuse words behind the target that are a launcher's flags, or much like ours, and not declared."""
    suspects = [word for word in words.loose if translate_flag(word)]
    if not suspects and not words.near:
        return
    from windlass.cli.flag_clash import check_launcher_flags, find_flags

    declared = frozenset(flag for source in sources for flag in find_flags(source))
    is_script = words.target[0] == "-m" or words.target[0].endswith(".py") or bool(sources)
    if find_launcher((*words.target, *words.rest)) is not None:
        is_script = False  # the flags are this launcher's own
    if is_script:
        source = sources[0] if sources else Path(words.target[-1])
        check_launcher_flags(words.loose, declared, _name_target(words, source))
    for word, flag in words.near.items():
        if word not in declared:
            _doubt(word, flag, words.target[-1])


def _name_target(words: SplitWords, source: Path) -> str:
    """Return the target as it was typed; for a command, the script in it."""
    target = words.target[-1]
    return source.name if any(word.endswith(source.name) for word in words.loose) else target


def _doubt(word: str, flag: str, target: str) -> None:
    """A word that looks much like a flag of ours: most likely a slip, unless the target is a command."""
    if not target.endswith(".py"):
        if translate_flag(word) and is_torchrun(target):  # its own, and understood
            return
        say(f"{word} is passed on to {target}; did you mean {flag}?")
        return
    raise SpecError(
        f"there is no flag {word}",
        hint=f"did you mean {flag}? if it is {target}'s own, write: {target} -- {word}",
    )


def _read_call(
    words: SplitWords, flags: Mapping[str, Any]
) -> tuple[Sequence[object], Mapping[str, object]]:
    from windlass.cli.signature import read_flags

    framework = flags.get("framework") or load_settings().framework
    given = choose_framework(framework, is_command=False).gives
    signature = _find_signature(words).without(given)
    names = [parameter.name for parameter in signature.parameters]
    own = {f"--{name.replace('_', dash)}" for name in names for dash in "_-"}
    for flag in words.late:
        if flag in own:
            raise SpecError(
                f"{flag} is a flag of Windlass and of {words.target[0]} too",
                hint=f"Windlass's: windlass {_verb()} {flag} ... {words.target[0]}; "
                f"its own: {words.target[0]} -- {flag} ...",
            )
    try:
        return read_flags(signature, words.rest)
    except SpecError as error:
        hidden = [word.partition("=")[0] for word in words.ours if word.startswith("--")]
        taken = [flag for flag in hidden if f" {flag} " in f"{error.message} "]
        if taken:
            hint = f"before -- {taken[0]} is Windlass's own; write: {words.target[0]} -- {taken[0]} ..."
            raise SpecError(error.message, hint=hint) from error
        foreign = [refusal for word in words.rest if (refusal := translate_flag(word))]
        if foreign and foreign[0].message.partition(" ")[0] in error.message:
            raise foreign[0] from error
        ours = [flag for word, flag in words.near.items() if word in error.message]
        if not ours or "did you mean" in error.hint:
            raise
        raise SpecError(error.message, hint=f"did you mean {ours[0]}?") from error


def _find_signature(words: SplitWords) -> Signature:
    from windlass.cli.signature import read_signature

    file, _, name = words.target[0].partition("::")
    if not name.isidentifier():
        raise SpecError(f"{name!r} is not the name of a function", hint="write FILE.py::FUNCTION")
    return read_signature(find_script(file, Path.cwd()), name)


def render_function_help(words: SplitWords, flags: Sequence[str], *, width: int) -> str:
    """The function's own parameters in full, our flags by name."""
    from windlass.cli.signature import render_help

    text = render_help(_find_signature(words), f"windlass run {words.target[0]}", width=width)
    ours = click.formatting.wrap_text(
        ", ".join(flags), width, initial_indent="  ", subsequent_indent="  "
    )
    return (
        f"{text}\nflags of Windlass (windlass run --help), which win before `--`;\n"
        f"after `--` all are the function's:\n{ours}\n"
    )
