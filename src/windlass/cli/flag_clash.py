"""Flags behind TARGET that a script may mean for itself: ours that it declares too, and those of launchers.

Read from the source without running it: a flag that is written out in it, or declared by a name. Our flags
before TARGET are ours; all words after `--` are the script's.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from windlass.client.jobs.project_imports import find_imported, list_imports, read_tree
from windlass.errors import SpecError
from windlass.spec.launchers import translate_flag

_MAX_FILES = 50
# libraries and classes that make flags of the names of parameters and fields
_BY_NAME = frozenset(
    {
        *("typer", "fire", "tyro", "jsonargparse", "simple_parsing", "HfArgumentParser"),
        *("TrlParser", "pyrallis", "draccus", "chz", "datargs", "pydantic_settings"),
    }
)


def check_clash(late: Sequence[str], source: Path, target: str, *, verb: str = "run") -> None:
    """Refuse a flag of ours that stands behind the target, and that the target's source declares."""
    wanted = {word.partition("=")[0] for word in late}
    if not wanted:
        return
    clash = sorted(wanted & find_flags(source))
    if clash:
        flag = clash[0]
        raise SpecError(
            f"{flag} is a flag of Windlass and of {target} too",
            hint=f"Windlass's: windlass {verb} {flag} ... {target}; its own: {target} -- {flag} ...",
        )


def check_launcher_flags(loose: Sequence[str], declared: frozenset[str], target: str) -> None:
    """Refuse a launcher's flag behind the target, unless the target's source declares it."""
    own = {flag.replace("-", "_") for flag in declared}
    for word, following in zip(loose, (*loose[1:], ""), strict=True):
        name = word.partition("=")[0]
        translation = translate_flag(word, following)
        if translation is not None and name.replace("-", "_") not in own:
            hint = f"{translation.hint}; if it is {target}'s own, write: {target} -- {name} ..."
            raise SpecError(translation.message, hint=hint)


def find_flags(source: Path) -> frozenset[str]:
    """Return what the source, and the files of the project that it imports, declare."""
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
    """Fields of dataclasses, which may be declared in another file than their parser."""
    for node in nodes:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield from _spell(node.target.id)


def _spell(name: str) -> tuple[str, str]:
    return f"--{name}", f"--{name.replace('_', '-')}"
