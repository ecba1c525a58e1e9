"""Sorting the words of `windlass run`: our flags, the target, and what belongs to the target.

Our flags win before `--`, wherever they stand; every other word after the target is passed on, and
what is after `--` is passed on as it is. Pure; knows no settings and no files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import click
from click.shell_completion import CompletionItem

from windlass.near_names import nearest
from windlass.spec.launchers import translate_flag

_ALIKE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitWords:
    """The words of one command line. `target` is empty when none was given."""

    ours: tuple[str, ...] = ()
    late: tuple[str, ...] = ()  # those of ours behind the target, where no `--` says whose is what
    target: tuple[str, ...] = ()  # one word, or `-m` and a module
    loose: tuple[str, ...] = ()  # before `--`: passed on because they are not ours
    verbatim: tuple[str, ...] = ()  # after `--`
    near: Mapping[str, str] = field(
        default_factory=dict
    )  # loose words that look much like a flag of ours

    @property
    def rest(self) -> tuple[str, ...]:
        return (*self.loose, *self.verbatim)

    @property
    def is_function(self) -> bool:
        return len(self.target) == 1 and "::" in self.target[0]


def sort_words(options: Mapping[str, click.Option], argv: Sequence[str]) -> SplitWords:
    """Return which word is whose. An unknown flag before the target is an error."""
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
    """An option and its value as one word, so that no value is ever taken for an option."""
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


class TargetCommand(click.Command):
    """A command whose words are sorted before click sees them; they arrive as `words`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # completing: half a line is no mistake
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
        """Every spelling of every option of ours."""
        params = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        return {name: p for p in params for name in (*p.opts, *p.secondary_opts)}

    def collect_usage_pieces(self, _ctx: click.Context) -> list[str]:
        return ["[OPTIONS]", "TARGET", "[ARGS]..."]

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [CompletionItem(incomplete, type="file")]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Options under their headings; those without one come first."""
        groups: dict[str, list[tuple[str, str]]] = {"": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                groups.setdefault(getattr(param, "group", ""), []).append(record)
        for heading, rows in groups.items():
            with formatter.section(heading or "Options"):
                formatter.write_dl(rows)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        words = ctx.params.get("words", SplitWords())
        if not words.is_function:
            super().format_help(ctx, formatter)
            return
        from windlass.cli.prepare import render_function_help

        flags = sorted({max(p.opts, key=len) for p in self.options(ctx).values()} - {"--help"})
        formatter.write(render_function_help(words, flags, width=formatter.width))
