"""A reader for one kind of message, written out as one function: for the few kinds that an empty call reads.

It looks at each field in place and asks the kind's own check only where a value is not the plain one, so it
reads what `Message.read` reads, and refuses what that refuses. Making it takes as long as some hundred reads.
"""

from __future__ import annotations

from windlass.wire.message import Message, find_part, make_check, make_members, read_annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Reader = Callable[[Mapping[str, Any]], Message]

# When a value of a type, written in words, is what the record holds, whatever else is so.
_PLAIN = {
    "str": "type(value) is str",
    "bool": "type(value) is bool",
    "Count": "type(value) is int and 0 <= value < 4611686018427387904",
    "float": "type(value) is float and value - value == 0.0",
    "Sequence[Count]": (
        "type(value) is list and len(value) == 1"
        " and type(value[0]) is int and 0 <= value[0] < 4611686018427387904"
    ),
    "Mapping[str, str]": "type(value) is dict and not value",
}


def write_reader(cls: type[Message]) -> Reader:
    """What makes messages of one kind from headers."""
    names: dict[str, Any] = {
        "cls": cls,
        "make": cls.__new__,
        "fill": object.__setattr__,
        "miss": cls.refuse_missing,
        "check": _make_checks(cls),
    }
    lines = ["def read(header):", " values = {}"]
    for name, text in read_annotations(cls).items():
        names[f"of_{name}"] = make_members(text) or find_part(text)
        lines += [f" if {name!r} in header:", f"  value = header[{name!r}]"]
        lines.append(f"  values[{name!r}] = {_write_value(name, text)}")
        if not hasattr(cls, name):
            lines += [" else:", f"  miss({name!r})"]
    lines += [" message = make(cls)", " fill(message, '__dict__', values)", " return message"]
    exec("\n".join(lines), names)  # noqa: S102 - of our own annotations
    reader: Reader = names["read"]
    return reader


def _write_value(name: str, text: str) -> str:
    """A field's value, from what was said."""
    checked = f"check[{name!r}](value)"
    if make_members(text):
        return f"of_{name}[value] if type(value) is str and value in of_{name} else {checked}"
    if find_part(text) is not None:
        one = f"of_{name}.read(one) if type(one) is dict else {checked}"
        return f"[{one} for one in value] if type(value) is list else {checked}"
    return f"value if {_PLAIN.get(text, 'False')} else {checked}"


def _make_checks(cls: type[Message]) -> dict[str, Any]:
    """What is done with a value that is not the plain one."""

    def make(name: str, text: str) -> Any:
        check = make_check(text)

        def check_or_refuse(value: Any) -> Any:
            try:
                return check(value)
            except ValueError as error:
                raise cls.refuse(name, error) from error

        return check_or_refuse

    return {name: make(name, text) for name, text in read_annotations(cls).items()}
