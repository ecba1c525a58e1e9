"""Preparation of a job from a command line, for `run` and `export`.

`sort_words` separates the flags of Windlass, the target and the target's own arguments. Flags of Windlass are
recognized anywhere before `--`, and all arguments after `--` belong to the target. A flag after the target
is rejected if the target's source declares it too. So are flags of launchers such as torchrun. The source is
parsed for this and never run.

Parameters of a function become flags here (`cli.function_flags`). Scripts, modules and commands get their
arguments unchanged. Each stage is frozen and made from the stages before it. Settings and target are read
once:

    words -> SplitWords -> Settings -> WorkTarget -> client.jobs.run.prepare_target -> Prepared
"""

from __future__ import annotations

import ast
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from windlass.cli.flags import SettingOption
from windlass.cli.verb_table import Verb
from windlass.client.jobs.launcher_size import is_torchrun
from windlass.client.jobs.run import (
    Prepared,
    check_declares,
    check_honored,
    choose_target,
    current_folder,
    prepare_target,
)
from windlass.client.jobs.source_analysis import find_imported, list_imports, read_tree
from windlass.client.jobs.target import WorkTarget, find_script
from windlass.client.terminal import print_notice
from windlass.errors import SpecError
from windlass.frameworks.framework import choose_framework
from windlass.near_names import nearest
from windlass.settings import Settings, read_settings
from windlass.spec.launchers import find_launcher, translate_flag
from windlass.spec.work import Command

if TYPE_CHECKING:
    from windlass.cli.function_flags import Signature


_ALIKE = 0.8
_OPTIONS = "Options"  # the heading of flags without a group
_MAX_FILES = 50
# libraries and classes that derive flags from the names of parameters and fields
_BY_NAME = frozenset(
    {
        *("typer", "fire", "tyro", "jsonargparse", "simple_parsing", "HfArgumentParser"),
        *("TrlParser", "pyrallis", "draccus", "chz", "datargs", "pydantic_settings"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitWords:
    """The arguments of one command line, by owner. `target` is empty if none was given."""

    ours: tuple[str, ...] = ()
    late: tuple[str, ...] = ()  # flags of Windlass after the target, if there is no `--`
    target: tuple[str, ...] = ()  # one argument, or `-m` and a module
    loose: tuple[
        str, ...
    ] = ()  # before `--`: passed to the target because Windlass does not know them
    verbatim: tuple[str, ...] = ()  # after `--`
    near: Mapping[str, str] = field(
        default_factory=dict
    )  # loose arguments that closely resemble a flag of Windlass

    @property
    def rest(self) -> tuple[str, ...]:
        return (*self.loose, *self.verbatim)

    @property
    def is_function(self) -> bool:
        return len(self.target) == 1 and "::" in self.target[0]


def sort_words(options: Mapping[str, click.Option], argv: Sequence[str]) -> SplitWords:
    """Sort the arguments by owner. An unknown flag before the target is an error."""
    cut = argv.index("--") if "--" in argv else len(argv)
    queue, verbatim = list(reversed(argv[:cut])), tuple(argv[cut + 1 :])
    ours: list[str] = []
    target: list[str] = []
    loose: list[str] = []
    late: list[str] = []
    while queue:
        word = queue.pop()
        name, equals, _ = word.partition("=")
        if word in options or (equals and name.startswith("--") and name in options):
            ours.append(word if equals else _take(options[word], word, queue))
            late += [name] if target else []
        elif target:
            loose.append(word)
        elif word == "-m":
            target = [word, *([queue.pop()] if queue else [])]
        elif word.startswith("-") and word != "-":
            raise translate_flag(word, queue[-1] if queue else "") or click.NoSuchOption(name)
        else:
            target = [word]
    if not target:
        size = 2 if verbatim[:1] == ("-m",) else 1
        target, verbatim = list(verbatim[:size]), verbatim[size:]
    return SplitWords(
        ours=tuple(ours),
        late=tuple(late) if cut == len(argv) else (),
        target=tuple(target),
        loose=tuple(loose),
        verbatim=verbatim,
        near=_find_near(options, loose),
    )


def _take(option: click.Option, word: str, queue: list[str]) -> str:
    """Return an option and its value as one argument, so that no value is mistaken for an option."""
    if option.is_flag:
        return word
    if not queue:
        raise click.BadOptionUsage(word, f"{word} needs a value: {option.metavar}")
    return f"{max(option.opts, key=len)}={queue.pop()}"


def _find_near(options: Mapping[str, click.Option], loose: Sequence[str]) -> dict[str, str]:
    flags = [name for name in options if name.startswith("--")]
    names = [word.partition("=")[0] for word in loose if word.startswith("--")]
    near = {name: nearest(name, flags, alike=_ALIKE) for name in names}
    return {name: flag for name, flag in near.items() if flag}


HELP_ALL = "--help-all"
_SHOWS_ALL = "windlass.help_all"


def _show_help_all(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        ctx.meta[_SHOWS_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


class TargetCommand(Verb):
    """Command that sorts its arguments before click parses them, and passes them as `words`.

    `--help` shows the flags that most users need, and `--help-all` shows every flag.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._help_all = click.Option(
            [HELP_ALL],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_help_all,
            help="Show all flags and exit",
        )

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), self._help_all]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # shell completion parses unfinished lines
            ctx.params["words"] = SplitWords()
            return super().parse_args(ctx, [])
        try:
            words = sort_words(self.options(ctx), args)
        except click.UsageError as error:
            error.ctx = ctx
            raise
        ctx.params["words"] = words
        return super().parse_args(ctx, list(words.ours))

    def options(self, ctx: click.Context) -> dict[str, click.Option]:
        """Return the options of Windlass by each of their spellings."""
        params = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        return {name: p for p in params for name in (*p.opts, *p.secondary_opts)}

    def collect_usage_pieces(self, _ctx: click.Context) -> list[str]:
        return ["[OPTIONS]", "TARGET", "[ARGS]..."]

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [CompletionItem(incomplete, type="file")]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the common options, or all options under their headings."""
        shows_all = ctx.meta.get(_SHOWS_ALL, False)
        groups: dict[str, list[tuple[str, str]]] = {_OPTIONS: []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            heading = _OPTIONS
            if isinstance(param, SettingOption) and shows_all:
                heading = param.group
            elif isinstance(param, SettingOption) and not param.is_common:
                continue
            if record is not None:
                groups.setdefault(heading, []).append(record)
        for heading, rows in groups.items():
            with formatter.section(heading):
                formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines = [
            (
                "Arguments after TARGET that are not Windlass flags, and everything after `--`, "
                "are passed to TARGET."
            ),
            "TIME is a duration such as 90s, 5m, 1h30m or 2d. A number without a unit means seconds.",
        ]
        if not ctx.meta.get(_SHOWS_ALL, False):
            count = len(set(self.options(ctx).values()))
            lines.append(f"Run `{ctx.command_path} {HELP_ALL}` for all {count} flags.")
        for line in lines:
            formatter.write_paragraph()
            formatter.write_text(line)

    def get_help_all(self, ctx: click.Context) -> str:
        """Return the text that `--help-all` shows."""
        ctx.meta[_SHOWS_ALL] = True
        return self.get_help(ctx)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        words = ctx.params.get("words", SplitWords())
        if not words.is_function or ctx.meta.get(_SHOWS_ALL, False):
            super().format_help(ctx, formatter)
            return

        own = {"--help", HELP_ALL}
        flags = sorted({max(p.opts, key=len) for p in self.options(ctx).values()} - own)
        formatter.write(render_function_help(words, flags, width=formatter.width))


def check_clash(late: Sequence[str], source: Path, target: str, *, verb: str = "run") -> None:
    """Reject a Windlass flag after the target if the target's source also declares it."""
    wanted = {word.partition("=")[0] for word in late}
    if not wanted:
        return
    clash = sorted(wanted & find_flags(source))
    if clash:
        flag = clash[0]
        raise SpecError(
            f"{flag} is a flag of both Windlass and {target}",
            hint=f"for Windlass: windlass {verb} {flag} ... {target}; for the target: {target} -- {flag} ...",
        )


def check_launcher_flags(loose: Sequence[str], declared: frozenset[str], target: str) -> None:
    """Reject a launcher's flag after the target, unless the target's source declares it."""
    own = {flag.replace("-", "_") for flag in declared}
    for word, following in zip(loose, (*loose[1:], ""), strict=True):
        name = word.partition("=")[0]
        translation = translate_flag(word, following)
        if translation is not None and name.replace("-", "_") not in own:
            hint = f"{translation.hint}; to pass it to {target}, write: {target} -- {name} ..."
            raise SpecError(translation.message, hint=hint)


def find_flags(source: Path) -> frozenset[str]:
    """Return the flags that the source and the project files it imports declare."""
    todo, seen = [source], {source}
    texts: set[str] = set()
    fields: set[str] = set()
    is_by_name = False
    while todo and len(seen) < _MAX_FILES:
        path = todo.pop()
        tree = read_tree(path)
        if tree is None:
            continue
        nodes = list(ast.walk(tree))
        texts.update(_find_texts(nodes))
        fields.update(_find_fields(nodes))
        imported = [module for node in nodes for module in list_imports(node)]
        if _makes_flags_of_names(nodes, [name for name, _ in imported]):
            is_by_name = True
            texts.update(_find_parameters(nodes))
        for name, level in imported:
            new = [f for f in find_imported(name, level, path, source.parent) if f not in seen]
            seen.update(new)
            todo += new
    return frozenset(texts | fields if is_by_name else texts)


def _makes_flags_of_names(nodes: Sequence[ast.AST], imported: Sequence[str]) -> bool:
    """Return whether a file imports such a library, or uses such a class: `transformers.HfArgumentParser`."""
    if any(part in _BY_NAME for name in imported for part in name.split(".")):
        return True
    return any(isinstance(node, ast.Attribute) and node.attr in _BY_NAME for node in nodes)


def _find_texts(nodes: Sequence[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.startswith("-"):
                yield from node.value.partition("=")[0].split("/")
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called.startswith("DEFINE_"):
                yield f"--{node.args[0].value!s}"


def _find_parameters(nodes: Sequence[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.arg):
            yield from _spell(node.arg)


def _find_fields(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield flags for dataclass fields, which may be in another file than their parser."""
    for node in nodes:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield from _spell(node.target.id)


def _spell(name: str) -> tuple[str, str]:
    return f"--{name}", f"--{name.replace('_', '-')}"


def prepare_words(words: SplitWords, *, detach: bool, flags: Mapping[str, Any]) -> Prepared:
    """Prepare the job of a command line without starting it."""
    if not words.target:
        raise SpecError(
            "nothing to run",
            hint=f"run `windlass {_verb()} TARGET`: train.py, train.py::function, -m module or any command",
        )
    cwd = current_folder()
    settings = read_settings(flags=flags, environ=os.environ, start=cwd)
    target = _choose_target(words, settings, cwd)
    prepared = prepare_target(target, settings, cwd=cwd, detach=detach)
    if _verb() != "export":  # export itself reports an engine without pods
        check_honored(prepared)
    return prepared


def _choose_target(words: SplitWords, settings: Settings, cwd: Path) -> WorkTarget:
    """Read the target that the arguments name, and check the arguments against its source."""
    if words.is_function:
        args, kwargs = _read_blind(words) if settings.in_image else _read_call(words, settings)
        return choose_target(words.target[0], args, kwargs, settings=settings, cwd=cwd)
    target = choose_target([*words.target, *words.rest], settings=settings, cwd=cwd)
    sources = () if settings.in_image else _find_sources(words, target, cwd)
    _check_late(words, sources)
    _check_loose(words, sources)
    if not settings.in_image:
        check_declares(target, cwd)
    return target


def _verb() -> str:
    """Return the verb that was typed: `run` or `export`."""
    context = click.get_current_context(silent=True)
    return (context.info_name if context else None) or "run"


def _read_blind(words: SplitWords) -> tuple[Sequence[object], Mapping[str, object]]:
    from windlass.cli.argument_values import read_blind

    return read_blind(words.rest)


def _find_sources(words: SplitWords, target: WorkTarget, cwd: Path) -> Sequence[Path]:
    """Return the script of a target, or of a command that names one, if an argument may be meant for it."""
    if not words.late and not any(word.startswith("--") for word in words.loose):
        return ()
    if target.source:
        return (target.source,)
    if not isinstance(target.work, Command):
        return ()
    scripts = [cwd / word for word in words.rest if word.endswith(".py")]
    return [path for path in scripts if path.is_file()][:1]


def _check_late(words: SplitWords, sources: Sequence[Path]) -> None:
    """Check flags of Windlass after a script, a module, or a command that names a script."""
    if not words.late:
        return

    for source in sources:
        check_clash(words.late, source, _name_target(words, source), verb=_verb())


def _check_loose(words: SplitWords, sources: Sequence[Path]) -> None:
    """Reject undeclared arguments after the target that resemble flags of Windlass or of a launcher."""
    suspects = [word for word in words.loose if translate_flag(word)]
    if not suspects and not words.near:
        return

    declared = frozenset(flag for source in sources for flag in find_flags(source))
    is_script = words.target[0] == "-m" or words.target[0].endswith(".py") or bool(sources)
    if find_launcher((*words.target, *words.rest)) is not None:
        is_script = False  # the flags belong to this launcher
    if is_script:
        source = sources[0] if sources else Path(words.target[-1])
        check_launcher_flags(words.loose, declared, _name_target(words, source))
    for word, flag in words.near.items():
        if word not in declared:
            _check_similar(word, flag, words.target[-1])


def _name_target(words: SplitWords, source: Path) -> str:
    """Return the target as typed, or the script in it if the target is a command."""
    target = words.target[-1]
    return source.name if any(word.endswith(source.name) for word in words.loose) else target


def _check_similar(word: str, flag: str, target: str) -> None:
    """Reject an argument that closely resembles a flag of Windlass. For a command, only print a note."""
    if not target.endswith(".py"):
        if translate_flag(word) and is_torchrun(target):  # a flag of torchrun itself
            return
        print_notice(f"{word} is passed to {target}; did you mean {flag}?")
        return
    raise SpecError(
        f"unknown flag {word}",
        hint=f"did you mean {flag}? to pass it to {target}, write: {target} -- {word}",
    )


def _read_call(
    words: SplitWords, settings: Settings
) -> tuple[Sequence[object], Mapping[str, object]]:
    from windlass.cli.function_flags import read_flags

    given = choose_framework(settings.framework, is_command=False).gives
    signature = _find_signature(words).without(given)
    names = [parameter.name for parameter in signature.parameters]
    own = {f"--{name.replace('_', dash)}" for name in names for dash in "_-"}
    for flag in words.late:
        if flag in own:
            raise SpecError(
                f"{flag} is a flag of both Windlass and {words.target[0]}",
                hint=f"for Windlass: windlass {_verb()} {flag} ... {words.target[0]}; "
                f"for the target: {words.target[0]} -- {flag} ...",
            )
    try:
        return read_flags(signature, words.rest)
    except SpecError as error:
        hidden = [word.partition("=")[0] for word in words.ours if word.startswith("--")]
        taken = [flag for flag in hidden if f" {flag} " in f"{error.message} "]
        if taken:
            hint = f"before --, {taken[0]} is a flag of Windlass; write: {words.target[0]} -- {taken[0]} ..."
            raise SpecError(error.message, hint=hint) from error
        foreign = [refusal for word in words.rest if (refusal := translate_flag(word))]
        if foreign and foreign[0].message.partition(" ")[0] in error.message:
            raise foreign[0] from error
        ours = [flag for word, flag in words.near.items() if word in error.message]
        if not ours or "did you mean" in error.hint:
            raise
        raise SpecError(error.message, hint=f"did you mean {ours[0]}?") from error


def _find_signature(words: SplitWords) -> Signature:
    from windlass.cli.function_flags import read_signature

    file, _, name = words.target[0].partition("::")
    if not name.isidentifier():
        raise SpecError(f"invalid function name {name!r}", hint="use FILE.py::FUNCTION")
    return read_signature(find_script(file, Path.cwd()), name)


def render_function_help(words: SplitWords, flags: Sequence[str], *, width: int) -> str:
    """Return the help of a function's parameters, and the names of the flags of Windlass."""
    from windlass.cli.function_flags import render_help

    text = render_help(_find_signature(words), f"windlass run {words.target[0]}", width=width)
    ours = textwrap.fill(
        ", ".join(flags),
        width,
        initial_indent="  ",
        subsequent_indent="  ",
        break_on_hyphens=False,
    )
    about = f"Before `--`, these are flags of Windlass (see `windlass {_verb()} {HELP_ALL}`):"
    return f"{text}\n{about}\n{ours}\n"
