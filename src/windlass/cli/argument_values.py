"""Conversion of command-line arguments to the values of a function's parameters.

`make_type` reads annotations as source text and imports no user code. It recognizes a type by its spelling
(`Path`, `pathlib.Path`, `Optional[int]`, `int | None`). An argument of unknown type becomes a Python literal
if possible, and otherwise a string. `read_blind` is for functions with a signature that is not available
here. This module performs no I/O and does not know parameters or flags.
"""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from windlass.errors import SpecError

_PLAIN = {
    "int": "int",
    "float": "float",
    "str": "str",
    "bool": "bool",
    "Path": "path",
    "PurePath": "path",
    "PosixPath": "path",
    "dict": "dict",
    "Dict": "dict",
    "Mapping": "dict",
    "MutableMapping": "dict",
    "list": "list",
    "List": "list",
    "Sequence": "list",
    "Iterable": "list",
    "Collection": "list",
    "tuple": "tuple",
    "Tuple": "tuple",
    "set": "set",
    "Set": "set",
    "frozenset": "frozenset",
    "FrozenSet": "frozenset",
}
_MANY: Mapping[str, Callable[[list[object]], object]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueType:
    """Type of an argument. `items` are the item types of a list, or the members of a union."""

    name: str
    items: tuple[ValueType, ...] = ()
    choices: tuple[object, ...] = ()
    optional: bool = False

    @property
    def is_many(self) -> bool:
        return self.name in _MANY or (self.name == "union" and any(t.is_many for t in self.items))

    @property
    def is_switch(self) -> bool:
        """True if the flag may be given without a value, like `--shuffle`."""
        return self.name == "bool" or (
            self.name == "union" and any(t.is_switch for t in self.items)
        )

    def __str__(self) -> str:
        inner = ", ".join(map(str, self.items))
        if self.name == "choice":
            text = "|".join(map(str, self.choices))
        elif self.name == "union":
            text = "|".join(map(str, self.items))
        elif self.name == "fixed":
            text = f"tuple[{inner}]"
        else:
            text = f"{self.name}[{inner}]" if self.items else _SPELLED.get(self.name, self.name)
        return f"{text}|none" if self.optional else text


_SPELLED = {"any": "value", "dict": "json"}
ANY = ValueType(name="any")


def make_type(annotation: str, default: object = ...) -> ValueType:
    """Infer a parameter's type from its annotation, or else from its default.

    Pass `...` for a parameter without a default.
    """
    kind = _of_text(annotation) if annotation else ANY
    if kind.name == "any" and default is not ...:
        kind = replace(_of_value(default), optional=kind.optional)
    return replace(kind, optional=True) if default is None else kind


def _of_text(annotation: str) -> ValueType:
    try:
        return _of_node(ast.parse(annotation.strip(), mode="eval").body)
    except (SyntaxError, ValueError):
        return ANY


def _of_node(node: ast.expr) -> ValueType:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _of_text(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _of_union([node.left, node.right])
    if isinstance(node, ast.Subscript):
        inner = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        return _of_generic(_last_name(node.value), inner)
    name = _PLAIN.get(_last_name(node), "any")
    return ValueType(name=name, items=(ANY,) if name in _MANY else ())


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _of_generic(name: str, inner: list[ast.expr]) -> ValueType:
    if not inner:
        return ANY
    if name in ("Annotated", "Final", "Required", "NotRequired"):
        return _of_node(inner[0])
    if name == "Optional":
        return replace(_of_node(inner[0]), optional=True)
    if name == "Union":
        return _of_union(inner)
    if name == "Literal":
        return _of_literal(inner)
    known = _PLAIN.get(name, "any")
    if known == "tuple" and not (isinstance(inner[-1], ast.Constant) and inner[-1].value is ...):
        return ValueType(name="fixed", items=tuple(map(_of_node, inner)))
    return ValueType(name=known, items=(_of_node(inner[0]),) if known in _MANY else ())


def _of_union(nodes: list[ast.expr]) -> ValueType:
    members: list[ValueType] = []
    optional = False
    for node in nodes:
        if isinstance(node, ast.Constant) and node.value is None:
            optional = True
            continue
        member = _of_node(node)
        optional = optional or member.optional
        members += member.items if member.name == "union" else [replace(member, optional=False)]
    # Strings come last, because every argument can be read as a string.
    ordered = dict.fromkeys(
        sorted(members, key=lambda t: (t.name == "str") + 2 * (t.name == "any"))
    )
    if len(ordered) == 1:
        return replace(next(iter(ordered)), optional=optional)
    return ValueType(name="union", items=tuple(ordered), optional=optional) if ordered else ANY


def _of_literal(nodes: list[ast.expr]) -> ValueType:
    try:
        values = [ast.literal_eval(node) for node in nodes]
    except ValueError:
        return ANY
    choices = tuple(value for value in values if value is not None)
    return ValueType(name="choice", choices=choices, optional=None in values)


def _of_value(value: object) -> ValueType:
    name = _PLAIN.get(type(value).__name__, "any")
    if not isinstance(value, (list, tuple, set)):
        return ValueType(name=name)
    kinds = {_of_value(item) for item in value}
    return ValueType(name=name, items=(kinds.pop() if len(kinds) == 1 else ANY,))


def read_values(kind: ValueType, texts: Sequence[str]) -> object:
    """Parse one value from all of its arguments. A list takes all of them, any other type the last."""
    if kind.name in _MANY or kind.name == "fixed":
        if kind.optional and texts[-1].lower() == "none":
            return None
        return _read_many(kind, [item for text in texts for item in _split(text)])
    if kind.name == "union" and len(texts) > 1:
        many = [member for member in kind.items if member.is_many]
        return read_values(many[0] if many else kind, texts if many else texts[-1:])
    return read_value(kind, texts[-1])


def read_value(kind: ValueType, text: str) -> object:
    """Parse one value from one argument. Raise ValueError if the argument does not fit the type."""
    if kind.optional and text.lower() == "none":
        return None
    if kind.name in _MANY or kind.name == "fixed":
        return _read_many(kind, _split(text))
    if kind.name == "union":
        return _read_union(kind, text)
    if kind.name == "choice":
        return _read_choice(kind, text)
    return _READERS[kind.name](text)


def _split(text: str) -> list[str]:
    """Return the items of a list, from `1,2,3` or from a Python or JSON list."""
    if text.strip()[:1] in ("[", "("):
        value = read_literal(text.strip())
        if isinstance(value, (list, tuple)):
            return [item if isinstance(item, str) else repr(item) for item in value]
    return [item.strip() for item in text.split(",")] if text.strip() else []


def _read_many(kind: ValueType, words: list[str]) -> object:
    if kind.name != "fixed":
        return _MANY[kind.name]([read_value(kind.items[0], word) for word in words])
    if len(words) != len(kind.items):
        raise ValueError(f"needs {len(kind.items)} values, found {len(words)}")
    return tuple(read_value(item, word) for item, word in zip(kind.items, words, strict=True))


def _read_union(kind: ValueType, text: str) -> object:
    for member in kind.items:
        try:
            return read_value(member, text)
        except ValueError:
            continue
    raise ValueError(f"must be one of {kind}")


def _read_choice(kind: ValueType, text: str) -> object:
    for choice in kind.choices:
        word = text.lower() if isinstance(choice, bool) else text
        if word == (str(choice).lower() if isinstance(choice, bool) else str(choice)):
            return choice
    raise ValueError(f"must be one of {', '.join(map(str, kind.choices))}")


def _read_bool(text: str) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in words:
        raise ValueError("must be true or false")
    return words[text.lower()]


def _read_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return int(text, 0)


def _read_dict(text: str) -> dict[str, object]:
    value = json.loads(text)
    if isinstance(value, dict):
        return value
    raise ValueError("must be a JSON object")


def read_literal(text: str) -> object:
    """Return the value of a Python literal, or the text itself if it is not a literal."""
    try:
        # Python warns about escapes such as '\d', which are valid in an argument.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


_READERS: Mapping[str, Callable[[str], object]] = {
    "int": _read_int,
    "float": float,
    "str": str,
    "bool": _read_bool,
    "path": Path,
    "dict": _read_dict,
    "any": read_literal,
}


def read_blind(words: Sequence[str]) -> tuple[list[object], dict[str, object]]:
    """Return positional and keyword values without the function's signature."""
    args: list[object] = []
    kwargs: dict[str, object] = {}
    queue = list(reversed(words))
    while queue:
        word = queue.pop()
        if not word.startswith("--"):
            args.append(_read_value(word))
            continue
        flag, equals, value = word[2:].partition("=")
        name = flag.replace("-", "_")
        if not name.isidentifier():
            raise SpecError(f"{word!r:.60} is not a keyword argument", hint="use --name VALUE")
        if equals:
            kwargs[name] = _read_value(value)
        elif queue and not queue[-1].startswith("--"):
            kwargs[name] = _read_value(queue.pop())
        else:
            kwargs[name] = True
    return args, kwargs


def _read_value(text: str) -> object:
    try:
        value: object = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {"true": True, "false": False, "none": None}.get(text.lower(), text)
    return value
