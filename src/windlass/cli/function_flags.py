"""Flags from a function's own signature: `windlass run train.py::train --lr 1e-3`.

The file is parsed with `ast` and never imported, so finding the flags neither loads torch nor runs user
code. Help text comes from the docstring, in Google, NumPy or Sphinx style. Errors about a missing file or
function suggest the nearest name. `cli.argument_values` converts arguments to values. `cli.prepare` separates
Windlass's arguments from the function's.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from windlass.cli.argument_values import ANY, ValueType, make_type, read_values
from windlass.errors import SpecError
from windlass.near_names import did_you_mean

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_GOOGLE_SECTION = re.compile(r"(?:Args|Arguments|Parameters|Keyword Args|Keyword Arguments):\s*")
_GOOGLE_ITEM = re.compile(r"\*{0,2}(\w+)\s*(?:\(.*?\))?\s*:\s*(.*)")
_NUMPY_SECTION = re.compile(r"(?:Other )?Parameters\s*")
_NUMPY_ITEM = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?")
_SPHINX_ITEM = re.compile(
    r":(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*\s)?\*{0,2}(\w+):(.*)"
)
# The kinds of Python: before `/`, ordinary, after `*`, `*args` and `**kwargs`.
Kind = Literal["positional", "either", "keyword", "args", "kwargs"]


def read_function(path: Path, function: str) -> ast.FunctionDef:
    """Return the last top-level `def` of that name in the file. Raise SpecError if there is none."""
    tree = _parse(path)
    functions = {n.name: n for n in _top_level(tree.body) if isinstance(n, _FUNCTIONS)}
    node = functions.get(function)
    if node is None:
        raise _make_missing(tree, path, function, sorted(functions))
    if isinstance(node, ast.AsyncFunctionDef):
        raise SpecError(
            f"{function} in {path} is async, but ranks run plain functions",
            hint=f"use a plain function that calls `asyncio.run({function}(...))`",
        )
    return node


def _parse(path: Path) -> ast.Module:
    try:
        # Python repeats warnings about the source, such as invalid escapes, when the file runs.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(path.read_bytes(), filename=str(path))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SpecError(f"file not found: {path}", hint=_nearest_file(path)) from error
    except OSError as error:
        raise SpecError(
            f"cannot read {path}: {error.strerror}", hint="pass a Python file: train.py::train"
        ) from error
    except SyntaxError as error:
        version = ".".join(map(str, sys.version_info[:2]))
        raise SpecError(
            f"{path}, line {error.lineno or 1}: {error.msg}",
            hint=f"correct that line; it is parsed with Python {version}",
        ) from error
    except ValueError as error:
        raise SpecError(
            f"{path} is not valid Python: {error}", hint="pass a Python file"
        ) from error


def _nearest_file(path: Path) -> str:
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist either"
    files = sorted(other.name for other in path.parent.glob("*.py"))
    listed = f"Python files there: {', '.join(files[:8])}" if files else "no Python file is there"
    return did_you_mean(path.name, files, listed, show=path.parent.joinpath)


def _top_level(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield every statement that runs on import, including those under `if`, `try` and the like."""
    for node in body:
        yield node
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            for block in ("body", "handlers", "orelse", "finalbody", "cases"):
                yield from _top_level(getattr(node, block, ()))


def _make_missing(
    tree: ast.Module, path: Path, function: str, functions: Sequence[str]
) -> SpecError:
    wrap = "write a top-level `def` that calls it, and run that"
    if "." in function:
        return SpecError(f"{function} is not a top-level function of {path}", hint=wrap)
    if function in _bound_names(tree):
        return SpecError(f"{function} in {path} is not written with `def`", hint=wrap)
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS) and node.name == function:
            where = f"line {node.lineno} of {path}"
            return SpecError(f"{function} ({where}) is inside a function or a class", hint=wrap)
    listed = f"functions there: {', '.join(functions)}" if functions else "no function is there"
    hint = did_you_mean(function, functions, listed, show=repr)
    return SpecError(f"function {function!r} not found in {path}", hint=hint)


def _bound_names(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in _top_level(tree.body):
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(target.id for target in targets if isinstance(target, ast.Name))
    return names


def read_summary(docstring: str) -> str:
    """Return the first paragraph as one line."""
    lines = inspect.cleandoc(docstring).splitlines()
    return " ".join(line.strip() for line in _paragraph(lines))


def read_parameter_help(docstring: str) -> Mapping[str, str]:
    """Return the first paragraph about each documented parameter, as one line."""
    lines = inspect.cleandoc(docstring).splitlines()
    help_of: dict[str, str] = {}
    for index, line in enumerate(lines):
        if _GOOGLE_SECTION.fullmatch(line):
            help_of.update(_read_google(_block(lines[index + 1 :])))
        elif _NUMPY_SECTION.fullmatch(line) and _is_underline(lines[index + 1 : index + 2]):
            help_of.update(_read_numpy(lines[index + 2 :]))
        elif match := _SPHINX_ITEM.fullmatch(line.strip()):
            help_of[match[1]] = _join(match[2], _block(lines[index + 1 :]))
    return help_of


def _read_google(block: Sequence[str]) -> Iterator[tuple[str, str]]:
    indent = _indent(block[0]) if block else 0
    for index, line in enumerate(block):
        match = _GOOGLE_ITEM.fullmatch(line.strip())
        if match and _indent(line) == indent:
            yield match[1], _join(match[2], _block(block[index + 1 :], indent))


def _read_numpy(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for index, line in enumerate(lines):
        if _is_underline(lines[index + 1 : index + 2]):
            return
        match = _NUMPY_ITEM.fullmatch(line)
        if match:
            text = _join("", _block(lines[index + 1 :]))
            for name in match[1].split(","):
                yield name.strip().lstrip("*"), text


def _block(lines: Sequence[str], indent: int = 0) -> Sequence[str]:
    """Return the leading lines that are indented deeper than `indent`, including blank lines."""
    for index, line in enumerate(lines):
        if line.strip() and _indent(line) <= indent:
            return lines[:index]
    return lines


def _join(first: str, rest: Sequence[str]) -> str:
    return " ".join(line.strip() for line in _paragraph([first, *rest])).strip()


def _paragraph(lines: Sequence[str]) -> Sequence[str]:
    for index, line in enumerate(lines):
        if not line.strip() and index > 0:
            return lines[:index]
    return lines


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _is_underline(lines: Sequence[str]) -> bool:
    return bool(lines) and len(lines[0].strip()) >= 3 and set(lines[0].strip()) <= {"-", "="}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter. `default` is a value if the default is a literal, and otherwise its source text."""

    name: str
    kind: Kind
    annotation: str = ""
    default: object = None
    default_text: str = ""
    is_literal: bool = False
    help: str = ""

    @property
    def required(self) -> bool:
        return not self.default_text and self.kind not in ("args", "kwargs")

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def type(self) -> ValueType:
        return make_type(self.annotation, self.default if self.is_literal else ...)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Signature of a function, read from its source."""

    path: Path
    function: str
    parameters: tuple[Parameter, ...]
    doc: str = ""

    def without(self, name: str) -> Signature:
        """Return the signature without one parameter."""
        others = tuple(one for one in self.parameters if one.name != name)
        return replace(self, parameters=others)

    def of_kind(self, *kinds: Kind) -> tuple[Parameter, ...]:
        return tuple(p for p in self.parameters if p.kind in kinds)


def read_signature(path: Path, function: str) -> Signature:
    """Return the signature of a top-level `def` in the file, without importing the file."""
    node = read_function(path, function)
    docstring = ast.get_docstring(node) or ""
    helps = read_parameter_help(docstring)
    parameters = tuple(_read_parameters(node.args, helps))
    return Signature(
        path=path, function=function, parameters=parameters, doc=read_summary(docstring)
    )


def _read_parameters(arguments: ast.arguments, helps: Mapping[str, str]) -> Iterator[Parameter]:
    def make(arg: ast.arg, kind: Kind, default: ast.expr | None = None) -> Parameter:
        value, is_literal = _read_default(default)
        return Parameter(
            name=arg.arg,
            kind=kind,
            annotation=_annotation_text(arg.annotation),
            default=value,
            default_text=ast.unparse(default) if default else "",
            is_literal=is_literal,
            help=helps.get(arg.arg, ""),
        )

    ordered = [*arguments.posonlyargs, *arguments.args]
    padding = [None] * (len(ordered) - len(arguments.defaults))
    for index, (arg, default) in enumerate(
        zip(ordered, [*padding, *arguments.defaults], strict=True)
    ):
        is_first = index < len(arguments.posonlyargs)
        yield make(arg, "positional" if is_first else "either", default)
    if arguments.vararg:
        yield make(arguments.vararg, "args")
    for arg, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield make(arg, "keyword", default)
    if arguments.kwarg:
        yield make(arguments.kwarg, "kwargs")


def _annotation_text(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ast.unparse(node) if node else ""


def _read_default(node: ast.expr | None) -> tuple[object, bool]:
    if node is None:
        return None, False
    try:
        return ast.literal_eval(node), True
    except (ValueError, TypeError):
        return ast.unparse(node), False


def read_flags(signature: Signature, argv: Sequence[str]) -> tuple[list[object], dict[str, object]]:
    """Return the arguments of the call.

    Plain words fill parameters in order, and `--name value` fills a parameter by name.
    """
    words, given = _sort_words(signature, argv)
    args = _read_plain(signature, words)
    known = {p.name: p for p in signature.of_kind("either", "keyword")}
    rest = signature.of_kind("kwargs")
    kwargs = {
        name: _read(signature, known.get(name) or rest[0], _flag(name), texts)
        for name, texts in given.items()
    }
    _check_call(signature, words, kwargs)
    return args, kwargs


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _sort_words(
    signature: Signature, argv: Sequence[str]
) -> tuple[list[str], dict[str, list[str]]]:
    words: list[str] = []
    given: dict[str, list[str]] = {}
    queue = list(reversed(argv))
    while queue:
        word = queue.pop()
        if not word.startswith("--"):
            if word.startswith("-") and word != "-" and not _is_number(word):
                raise _make_unknown(signature, word)
            words.append(word)
            continue
        name, equals, text = word[2:].partition("=")
        name, parameter, is_negated = _find_flag(signature, name.replace("-", "_"))
        if is_negated and equals:
            raise SpecError(f"{word.partition('=')[0]} takes no value", hint=f"use {_flag(name)}")
        if not equals:
            text = "False" if is_negated else _take_value(signature, parameter, word, queue)
        given.setdefault(name, []).append(text)
    return words, given


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _find_flag(signature: Signature, name: str) -> tuple[str, Parameter, bool]:
    """Return the name that a flag sets, its parameter, and whether it is the `--no-` form."""
    known = {p.name: p for p in signature.of_kind("either", "keyword")}
    if name in known:
        return name, known[name], False
    positive = name.removeprefix("no_")
    if positive != name and positive in known and known[positive].type.is_switch:
        return positive, known[positive], True
    rest = signature.of_kind("kwargs")
    if rest and name:
        return name, rest[0], False
    raise _make_unknown(signature, _flag(name))


def _take_value(signature: Signature, parameter: Parameter, flag: str, queue: list[str]) -> str:
    kind = parameter.type
    follows = queue[-1] if queue and not queue[-1].startswith("--") else None
    if kind.name == "bool":
        # A switch takes only these values, so `--shuffle data.csv` is a switch and a separate argument.
        values = ("true", "false", "none") if kind.optional else ("true", "false")
        return queue.pop() if follows and follows.lower() in values else "True"
    if follows is not None:
        return queue.pop()
    if kind.is_switch or (parameter.kind == "kwargs" and kind == ANY):
        return "True"
    raise SpecError(f"{flag} requires a value: {_spell(parameter)}", hint=render_usage(signature))


def _make_unknown(signature: Signature, word: str) -> SpecError:
    name = signature.function
    for parameter in signature.of_kind("positional"):
        if word == parameter.flag:
            return SpecError(
                f"{name} takes {parameter.name} as a positional argument, not as a flag",
                hint=render_usage(signature),
            )
    flags = [p.flag for p in signature.of_kind("either", "keyword")]
    flags += [f"--no-{p.flag[2:]}" for p in signature.parameters if p.type.is_switch]
    hint = did_you_mean("--" + word.lstrip("-"), flags, render_usage(signature))
    return SpecError(f"{name} has no flag {word}", hint=hint)


def _read_plain(signature: Signature, words: Sequence[str]) -> list[object]:
    slots = list(signature.of_kind("positional", "either"))
    rest = signature.of_kind("args")
    if len(words) > len(slots) and not rest:
        raise SpecError(
            f"unexpected argument {words[len(slots)]!r}: {signature.function} takes "
            f"{f'at most {len(slots)}' if slots else 'no'} positional arguments",
            hint=render_usage(signature),
        )
    slots += list(rest) * (len(words) - len(slots))
    return [
        _read(signature, parameter, parameter.name, [word])
        for parameter, word in zip(slots, words, strict=False)
    ]


def _read(signature: Signature, parameter: Parameter, label: str, texts: Sequence[str]) -> object:
    try:
        return read_values(parameter.type, texts)
    except (ValueError, RecursionError) as error:
        quoted = " ".join(map(repr, texts))
        raise SpecError(
            f"{label} must be {_spell(parameter)}, not {quoted:.200}",
            hint=render_usage(signature),
        ) from error


def _check_call(signature: Signature, words: Sequence[str], kwargs: Mapping[str, object]) -> None:
    filled = signature.of_kind("positional", "either")[: len(words)]
    for parameter, word in zip(filled, words, strict=False):
        if parameter.kind == "either" and parameter.name in kwargs:
            raise SpecError(
                f"{parameter.name} is given twice: as {parameter.flag} and as the positional argument "
                f"{word!r}",
                hint=render_usage(signature),
            )
    missing = [
        f"{p.name if p.kind == 'positional' else p.flag} ({_spell(p)})"
        for p in signature.parameters
        if p.required and p not in filled and (p.name not in kwargs or p.kind == "positional")
    ]
    if missing:
        raise SpecError(
            f"{signature.function} requires {', '.join(missing)}", hint=render_usage(signature)
        )


def _spell(parameter: Parameter) -> str:
    kind = parameter.type
    return parameter.annotation if kind.name == "any" and parameter.annotation else str(kind)


def _render_form(parameter: Parameter) -> str:
    if parameter.kind == "positional":
        return parameter.name.upper()
    if parameter.kind == "args":
        return f"{parameter.name.upper()} ..."
    if parameter.kind == "kwargs":
        return f"--KEY {_spell(parameter)} ..."
    if parameter.type.name == "bool":
        return f"{parameter.flag} | --no-{parameter.flag[2:]}"
    return f"{parameter.flag} {_spell(parameter)}"


def render_usage(signature: Signature) -> str:
    """Return the usage of the function as one line."""
    prog = f"windlass run {signature.path}::{signature.function}"
    return " ".join(["usage:", prog, *_render_forms(signature)])


def _render_forms(signature: Signature) -> list[str]:
    forms = [(_render_form(p), p.required) for p in signature.parameters]
    return [form if required else f"[{form}]" for form, required in forms]


def render_help(signature: Signature, prog: str, *, width: int = 88) -> str:
    """Return the usage, the first paragraph of the docstring, and each parameter with type and default."""
    # No-break spaces keep a flag and its value on one line.
    parts = [part.replace(" ", "\xa0") for part in (f"usage: {prog}", *_render_forms(signature))]
    usage = textwrap.wrap(
        " ".join(parts),
        width,
        subsequent_indent=" " * 7,
        break_on_hyphens=False,
        break_long_words=False,
    )
    lines = [line.replace("\xa0", " ") for line in usage]
    if signature.doc:
        lines += ["", *textwrap.wrap(signature.doc, width)]
    if signature.parameters:
        lines += ["", "parameters:"]
        column = min(30, max(len(_render_form(p)) for p in signature.parameters) + 4)
        for parameter in signature.parameters:
            lines += _render_parameter(parameter, column, width)
    if any(p.type.is_many for p in signature.of_kind("either", "keyword")):
        lines += ["", "A list is given as 1,2,3 or by naming its flag again."]
    return "\n".join(lines) + "\n"


def _render_parameter(parameter: Parameter, column: int, width: int) -> list[str]:
    kind = _spell(parameter) if parameter.kind in ("positional", "args") else ""
    note = "(required)" if parameter.required else ""
    if parameter.default_text:
        note = f"(default: {parameter.default_text})"
    text = " ".join(filter(None, (kind, parameter.help, note)))
    form = f"  {_render_form(parameter)}"
    indent = " " * column
    wrapped = textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent)
    if wrapped and len(form) + 2 <= column:
        return [form.ljust(column) + wrapped[0][column:], *wrapped[1:]]
    return [form, *wrapped]
