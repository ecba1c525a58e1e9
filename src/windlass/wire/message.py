"""Message: one kind of what processes say to each other, a frozen record with checks for each field.

Read and checked once, where it arrives; a Direction is the kinds that one side may say. Kinds that are read
often get a reader written for them when the first one comes. Ranks and the fork server import this: no
dataclasses, no typing at run time.
"""

from __future__ import annotations

from math import isfinite

from windlass.errors import ProtocolError

TYPE_CHECKING = False


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, ClassVar

    from typing_extensions import Self, dataclass_transform

    Check = Callable[[Any], Any]  # the value as the record holds it; ValueError says what it is not
    Field = tuple[str, type | None, Check, bool]  # name, type that needs no check, check, optional
    # what annotations may say beside Python's own words
    Count = int  # not negative
    Port = int
    Metric = float | int | str | bool | None
    JsonObject = dict[str, Any]  # whatever is in it
    Handlers = dict[type["Message"], Callable[..., Any]]  # what a receiver does with each kind
else:
    Count = Port = Metric = JsonObject = Handlers = None

    def dataclass_transform(**_options):
        return lambda cls: cls


_MAX_INT = 1 << 62
_MAX_PORT = (1 << 16) - 1
_fill = object.__setattr__  # as a whole: its own dict is what a message is

_STATES = "wire.states"

# Records of other modules that messages carry, and where they are; loaded with the first one.
_CARRIED = {
    **dict.fromkeys(("ErrorInfo", "Outcome", "ResultHeader"), "wire.results"),
    **dict.fromkeys(("JobStatus", "Verdict"), "wire.status"),
    **dict.fromkeys(("LeadHandover", "LostLead", "Seat"), "wire.lead_handover"),
    "NodePlan": "plan.plan",
    "ImageStep": "spec.work",
    "NodeSize": "spec.node_resources",
    "NodeSizes": "spec.node_resources",
    **dict.fromkeys(("CallState", "RankState"), _STATES),
}
_parts: dict[str, type[Message]] = {}  # messages inside messages, by name


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Message:
    """One kind of message. A field that is not given has its default, and is not sent."""

    kind: ClassVar[str] = ""
    tag: ClassVar[str] = "type"  # the key under which the kind is said
    _fields: ClassVar[tuple[Field, ...] | None] = None

    def __init_subclass__(cls, *, kind: str = "", is_hot: bool = False) -> None:
        cls.kind = kind
        cls._fields = None
        _parts[cls.__name__] = cls
        if is_hot:  # an empty call reads it
            cls.read = classmethod(_read_hot)  # type: ignore[assignment]

    def __init__(self, **fields: Any) -> None:
        _fill(self, "__dict__", fields)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be changed: use replaced()")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in field_names(type(self)))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({fields})"

    def to_header(self) -> dict[str, Any]:
        """What is said: the kind and the fields that were given."""
        return {self.tag: self.kind, **self.__dict__}

    def says(self, name: str) -> bool:
        """Whether a field was given, even as None."""
        return name in self.__dict__

    def replaced(self, **fields: Any) -> Self:
        """The same with some fields changed."""
        return type(self)(**{**self.__dict__, **fields})

    @classmethod
    def read(cls, header: Mapping[str, Any]) -> Self:
        """The message in a header; keys that it does not know are ignored, all others are checked."""
        values: dict[str, Any] = {}
        for name, plain, check, is_optional in cls._fields or cls._find_fields():
            if name not in header:
                if not is_optional:
                    cls.refuse_missing(name)
                continue
            value = header[name]
            if type(value) is plain:
                values[name] = value
                continue
            try:
                values[name] = check(value)
            except ValueError as error:
                raise cls.refuse(name, error) from error
        message = cls.__new__(cls)
        _fill(message, "__dict__", values)
        return message

    @classmethod
    def refuse(cls, name: str, error: ValueError) -> ProtocolError:
        """The error of a value that a field cannot have."""
        return ProtocolError(f"{cls._describe()}: its {name} is {error}")

    @classmethod
    def refuse_missing(cls, name: str) -> None:
        """A field that must be said is not."""
        raise ProtocolError(f"{cls._describe()}: it has no {name}")

    @classmethod
    def _describe(cls) -> str:
        return f"a malformed message ({cls.kind or cls.__name__})"

    @classmethod
    def _find_fields(cls) -> tuple[Field, ...]:
        texts = read_annotations(cls)
        cls._fields = tuple(
            (name, _PLAIN.get(text), make_check(text), hasattr(cls, name))
            for name, text in texts.items()
        )
        return cls._fields


def _read_hot(cls: type[Message], header: Mapping[str, Any]) -> Message:
    """The first one of a kind."""
    have_reader(cls)
    return cls.read(header)


def have_reader(cls: type[Message]) -> None:
    """From now on a function of its own reads this kind."""

    cls.read = staticmethod(write_reader(cls))  # type: ignore[method-assign,assignment]


class Direction:
    """Who says what to whom: the kinds that may come from one side, by their names."""

    def __init__(self, sender: str, receiver: str, about: str, *kinds: type[Message]) -> None:
        self.sender = sender
        self.receiver = receiver
        self.about = about
        self.kinds = {cls.kind: cls for cls in kinds}
        self._tag = kinds[0].tag

    def read(self, header: Any) -> Message:
        """The message in a header; one that the sender has no business to say is refused."""
        try:
            cls = self.kinds[header[self._tag]]
        except (KeyError, TypeError):  # TypeError: it is no object, or its kind is none
            kind = header.get(self._tag) if isinstance(header, dict) else None
            raise ProtocolError(
                f"{kind!r:.40} is nothing that the {self.sender} says to the {self.receiver}",
                hint="use the same version of Windlass on both sides",
            ) from None
        return cls.read(header)


def read_annotations(cls: type[Message]) -> dict[str, str]:
    """The fields of a kind, with the text of their annotations."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-2]):  # less Message and object
        texts.update(base.__annotations__)
    return {name: text for name, text in texts.items() if not text.startswith("ClassVar")}


def field_names(cls: type[Message]) -> tuple[str, ...]:
    return tuple(read_annotations(cls))


def to_plain(value: Any) -> dict[str, Any]:
    """The fields of a message or a record inside a message: for an encoder of JSON, which knows none."""
    if isinstance(value, Message):
        return value.__dict__
    if hasattr(value, "__dataclass_fields__"):
        from windlass import records

        return dict(records.to_json(value))
    raise TypeError(f"{value!r:.80} cannot be said in a message")


# -- checks ------------------------------------------------------------------------------------

# of these any value will do, so that looking at the type is all
_PLAIN: dict[str, type] = {"str": str, "bool": bool, "JsonObject": dict}


def make_check(text: str) -> Check:
    """The check for a type, from its annotation's text."""
    if text.endswith(" | None"):
        inner = make_check(text.removesuffix(" | None"))
        return lambda value: None if value is None else inner(value)
    for opening, make in (("Sequence[", _make_list_check), ("Mapping[str, ", _make_dict_check)):
        if text.startswith(opening):
            return make(text.removeprefix(opening).removesuffix("]"))
    if text in _CHECKS:
        return _CHECKS[text]
    if text in _PLAIN:
        return _refuse_but(_PLAIN[text], text)
    return _make_record_check(text)


def _refuse_but(plain: type, text: str) -> Check:
    def check(value: Any) -> Any:
        if type(value) is not plain:
            raise ValueError(f"{value!r:.60}, not a {text}")
        return value

    return check


def _make_list_check(inner_text: str) -> Check:
    inner = make_check(inner_text)

    def check(value: Any) -> Any:
        if type(value) is not list and type(value) is not tuple:
            raise ValueError(f"{value!r:.60}, not a list")
        return [inner(one) for one in value]

    return check


def _make_dict_check(inner_text: str) -> Check:
    inner = make_check(inner_text)

    def check(value: Any) -> Any:
        if type(value) is not dict:
            raise ValueError(f"{value!r:.60}, not an object")
        if not value:
            return value
        return {key: inner(one) for key, one in value.items()}

    return check


def _make_record_check(name: str) -> Check:
    if name in _parts:
        return _make_part_check(_parts[name])
    from importlib import import_module

    from windlass import records

    if members := make_members(name):
        return _make_enum_check(name, members)
    record: Any = getattr(import_module(f"windlass.{_CARRIED[name]}"), name)
    return lambda value: value if isinstance(value, record) else records.read(record, value)


def find_part(text: str) -> type[Message] | None:
    """The kind of messages that a list has; None for what is no such list."""
    return _parts.get(text[9:-1]) if text.startswith("Sequence[") else None


def make_members(name: str) -> dict[str, Any]:
    """The words of an enum; empty for what is none."""
    if _CARRIED.get(name) != _STATES:
        return {}
    from importlib import import_module

    return {word.value: word for word in getattr(import_module(f"windlass.{_STATES}"), name)}


def _make_enum_check(name: str, members: dict[str, Any]) -> Check:
    def check(value: Any) -> Any:
        if type(value) is not str or value not in members:
            raise ValueError(f"{value!r:.60}, not a {name}")
        return members[value]

    return check


def _make_part_check(part: type[Message]) -> Check:
    def check(value: Any) -> Message:
        if type(value) is not dict:
            raise ValueError(f"{value!r:.60}, not a {part.__name__}")
        return part.read(value)

    return check


def _check_int(value: Any) -> int:
    if type(value) is int and -_MAX_INT < value < _MAX_INT:
        return value
    raise ValueError(f"{value!r:.60}, not a whole number")


def _check_count(value: Any) -> int:
    if type(value) is int and 0 <= value < _MAX_INT:
        return value
    raise ValueError(f"{value!r:.60}, not a count")


def _check_port(value: Any) -> int:
    if type(value) is int and 0 <= value <= _MAX_PORT:
        return value
    raise ValueError(f"{value!r:.60}, not a port")


def _check_float(value: Any) -> float:
    if (type(value) is float or type(value) is int) and isfinite(value):
        return value
    raise ValueError(f"{value!r:.60}, not a number")


def _check_metric(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise ValueError(f"{value!r:.60}, neither a number nor text")


_CHECKS: dict[str, Check] = {
    "int": _check_int,
    "Count": _check_count,
    "Port": _check_port,
    "float": _check_float,
    "Metric": _check_metric,
    "Any": lambda value: value,
}


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Reader = Callable[[Mapping[str, Any]], Message]

# When a value of a type, written in words, is what the record holds, whatever else is so.
_INLINE_CHECKS = {
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
    return f"value if {_INLINE_CHECKS.get(text, 'False')} else {checked}"


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
