"""Names in documentation, docstrings and comments must exist: files, modules, commands and flags.

A pointer is a name in backticks, or a `windlass` command in a code block. A file may be referred to by the
end of its path (`lead/world.py`). Files of users and of images are not pointers. `NO_FILES` lists them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
from repository_texts import find_prose, list_files

from windlass.cli.verb_table import cli

ROOT = Path(__file__).parents[2]
TICKED = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w.-]+(/[\w.-]+)*\.(py|md|toml|yaml|sh)")
MODULE = re.compile(r"windlass(\.\w+)+")
SHELL = re.compile(r"^```(?:sh|bash|console)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
SEPARATOR = re.compile(r"\s[;|&#>·]|[;,]\s")
WITH_TARGET = ("run", "export", "call")  # words after the target belong to the target
NO_FILES = {  # files of users and of exports
    *("setup.py", "train-rdzv.yaml", "stateful-set.yaml", "NAME.py", "NAME.md"),
}


@cache
def _read_texts() -> dict[str, str]:
    """Return the prose of every page and every Python file, by name."""
    texts = {}
    for name in list_files():
        if name.endswith(".md"):
            texts[name] = (ROOT / name).read_text()
        elif name.endswith(".py"):
            texts[name] = "\n".join(find_prose((ROOT / name).read_text()))
    return texts


def _find_ticked() -> Iterator[tuple[str, str]]:
    for name, text in _read_texts().items():
        yield from ((name, word) for word in TICKED.findall(text))


def test_files_exist() -> None:
    files = list_files()
    ends = {
        "/".join(parts[i:]) for f in files for parts in [f.split("/")] for i in range(len(parts))
    }
    stale = {
        (name, word)
        for name, word in _find_ticked()
        if FILE.fullmatch(word) and Path(word).name not in NO_FILES and word not in ends
    }
    assert not sorted(stale)


def test_modules_exist() -> None:
    import windlass

    stale = set()
    for name, word in _find_ticked():
        if (
            MODULE.fullmatch(word)
            and not FILE.fullmatch(word)
            and not _exists(word, vars(windlass)["__all__"])
        ):
            stale.add((name, word))
    assert not sorted(stale)


def _exists(dotted: str, public: list[str]) -> bool:
    """Return whether a dotted name is a module, or a name that its module defines."""
    parts = dotted.split(".")
    if parts[1] in public:
        return True
    place = ROOT / "src"
    for number, part in enumerate(parts):
        folder, file = place / part, place / f"{part}.py"
        if file.is_file():
            rest = parts[number + 1 :]
            return not rest or re.search(rf"\b{rest[0]}\b", file.read_text()) is not None
        if not folder.is_dir():
            init = place / "__init__.py"
            return init.is_file() and re.search(rf"\b{part}\b", init.read_text()) is not None
        place = folder
    return True


def _find_commands() -> Iterator[tuple[str, list[str]]]:
    """Return the `windlass` commands of code blocks and of inline code, as words."""
    for name, text in _read_texts().items():
        blocks = SHELL.findall(text) if name.endswith(".md") else []
        lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
        for line in (*lines, *TICKED.findall(text)):
            words = SEPARATOR.split(line.strip().removeprefix("$ "))[0].split()
            if words[:1] == ["windlass"] and len(words) > 1:
                yield name, words[1:]


def _make_context(command: click.Command) -> click.Context:
    """Return a context with the CLI's help flags. A command keeps those of its first context."""
    return click.Context(command, **cli.context_settings)


def _find_verb(words: list[str]) -> tuple[click.Command, list[str]] | None:
    """Return the command that the words name, and the remaining words."""
    command: click.Command = cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        verb = re.sub(r"[^\w-].*", "", words[0])
        if not verb or verb.isupper() or "|" in words[0]:  # VERB, a placeholder
            return None
        found = command.get_command(_make_context(command), verb)
        if found is None:
            raise AssertionError(f"there is no command {verb!r}")
        command, words = found, words[1:]
    return command, words


def test_commands_and_flags_exist() -> None:
    stale = set()
    for name, words in _find_commands():
        try:
            found = _find_verb(words)
        except AssertionError as error:
            stale.add((name, str(error)))
            continue
        if found is None:
            continue
        command, rest = found
        known = _list_flags(command)
        for flag in _find_own_flags(command, rest):
            if flag not in known:
                stale.add((name, f"{command.name} has no {flag}"))
    assert not sorted(stale)


def _list_flags(command: click.Command) -> set[str]:
    params = command.get_params(_make_context(command))
    return {flag for param in params for flag in (*param.opts, *param.secondary_opts)}


def _find_own_flags(command: click.Command, words: list[str]) -> Iterator[str]:
    """Return the flags before the target. All must be Windlass flags, but later ones may be the script's."""
    values = {
        flag
        for param in command.get_params(_make_context(command))
        if isinstance(param, click.Option) and not param.is_flag
        for flag in param.opts
    }
    queue = list(reversed(words))
    while queue:
        word = queue.pop()
        flag, equals, _ = word.partition("=")
        if not word.startswith("--"):
            if not word.startswith("-") and command.name in WITH_TARGET:
                return
            continue
        if word == "--":
            return
        yield re.sub(r"[^\w-].*", "", flag)
        if not equals and flag in values and queue:
            queue.pop()
