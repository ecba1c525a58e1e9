"""JSON encoding of records. One function writes them, and a table of checks validates them on reading.

A record is a frozen dataclass or a `wire.message.Message`. Its annotations, read as text, define its fields.
Its module therefore needs `from __future__ import annotations`. The checks of a class are made on first use.

Rules for both:
- Unknown keys are ignored, so that data of newer versions can be read. A field without a default is required.
- `str`, `bool` and `int` must have exactly this type, and an `int` must have fewer than 63 bits. A `Count` is
  an `int` of at least 0, and a `Port` is one from 0 to 65535. `Metric` is a scalar or None, `JsonObject` is
  any object, and `Any` is anything.
- `tuple`, `frozenset` and `Sequence` (read as a list) are lists in JSON, and `Mapping[str, X]` is an object.
- An enum is read from its value. The key `kind` selects a dataclass of a union.

Dataclasses and messages differ in two rules:
- A dataclass may contain numbers that JSON cannot represent. They are written as strings ("inf", "nan"). Its
  `float` is always a `float`. The numbers of a message are finite, and a whole number stays an `int`.
- An error in a dataclass names the outermost dataclass. An error in a message names the innermost record.

Only `parse` limits size and depth, because it reads data from other processes. Ranks and the fork server
import this module, so it uses only the standard library. It imports `dataclasses` only for a dataclass, and
never `typing`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import cache
from math import isfinite

from windlass.errors import ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    T = TypeVar("T")
    Check = Callable[[Any], Any]  # returns the value for the field, or raises FieldTypeError
    TypedCheck = tuple[type | None, Check]  # a value of exactly this type skips the check
    Field = tuple[str, type | None, Check, bool]  # name, TypedCheck, whether it has a default
    Fields = tuple[Field, ...]

MAX_JSON_BYTES = 64 << 20  # a status of ten thousand ranks takes 2 MiB
MAX_DEPTH = 100
_MAX_INT = 1 << 62
_MAX_PORT = (1 << 16) - 1

# Classes that other modules import for type checkers only. Each is loaded with its first value.
_LATE = {
    **dict.fromkeys(("CallState", "RankState"), "wire.states"),
    **dict.fromkeys(("ErrorInfo", "Outcome", "ResultHeader"), "wire.results"),
    **dict.fromkeys(("JobStatus", "Verdict"), "wire.status"),
    **dict.fromkeys(("LeadHandover", "LostLead", "AgentIdentity"), "wire.lead_handover"),
    **dict.fromkeys(("NodeSize", "NodeSizes"), "spec.node_resources"),
    "ImageStep": "spec.work",
    "NodePlan": "plan.plan",
    "PodSpec": "spec.pod_spec",
}


class FieldTypeError(ValueError):
    """A value that a field cannot hold."""

    def __init__(self, value: Any, expected: str) -> None:
        super().__init__(f"expected {expected}, found {value!r:.60}")
        self.value = value
        self.expected = expected
        self.path = ""  # path of field names below the class that is read


# -- writing -----------------------------------------------------------------------------------


def to_json(value: Any) -> Any:
    """Return the plain JSON form of a value. Tuples become lists. Numbers that JSON lacks become text."""
    cls: Any = type(value)
    if cls is str or cls is int or cls is bool or value is None:
        return value
    if hasattr(cls, "__dataclass_fields__"):
        data = {name: to_json(getattr(value, name)) for name in _dataclass_names(cls)}
        kind = getattr(cls, "kind", None)
        return {"kind": kind, **data} if isinstance(kind, str) else data
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if hasattr(cls, "__members__"):
        return value.value
    if hasattr(cls, "given_fields"):  # a message
        value = value.given_fields()
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json(item) for item in value]
    if isinstance(value, (str, int)):
        return value
    raise TypeError(f"{value!r:.80} cannot be written as JSON")


def _open(value: Any) -> Any:
    """Return an unknown value's next level in plain form, for the JSON encoder."""
    return value.given_fields() if hasattr(value, "given_fields") else to_json(value)


# Created once, because json.dumps makes a new encoder for each call with options.
encode = json.JSONEncoder(separators=(",", ":"), default=_open).encode


@cache
def _dataclass_names(cls: Any) -> tuple[str, ...]:
    from dataclasses import fields

    return tuple(field.name for field in fields(cls))


# -- reading -----------------------------------------------------------------------------------


def parse(text: bytes, what: str, *, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Return the value of JSON that another process wrote.

    Raise ProtocolError, which names `what`, if it is not JSON, too long or nested too deep.
    """
    if len(text) > max_bytes:
        raise ProtocolError(f"{what} has more than {max_bytes} bytes")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{what} is not JSON: {error!s:.80}") from error
    if is_deep(value):
        raise ProtocolError(f"{what} is nested more than {MAX_DEPTH} levels deep")
    return value


def is_deep(value: Any) -> bool:
    """Return whether plain data is nested deeper than MAX_DEPTH."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for one in level:
            if isinstance(one, Mapping):
                inner.extend(one.values())
            elif isinstance(one, (list, tuple)):
                inner.extend(one)
        level = [one for one in inner if isinstance(one, (Mapping, list, tuple))]
        if not level:
            return False
    return True


def read(cls: type[T], data: Any) -> T:
    """Build a dataclass or union member from its JSON form. Raise ProtocolError if the JSON is invalid."""
    try:
        target: Any = cls
        built: T = _class_check(target)(data)
    except (TypeError, ValueError) as error:  # TypeError is raised by the class itself
        path = getattr(error, "path", "")
        raise ProtocolError(
            f"cannot read {getattr(cls, '__name__', cls)}: {f'{path}: ' if path else ''}{error}",
            hint="another version of Windlass may have written it; `windlass doctor` shows this version",
        ) from error
    return built


def read_fields(cls: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a class in a JSON object, checked. Raise FieldTypeError or another ValueError."""
    values = {}
    name = ""
    try:
        for name, plain, check, has_default in _FIELDS.get(cls) or find_fields(cls):
            if name in data:
                value = data[name]
                values[name] = value if type(value) is plain else check(value)
            elif not has_default:
                raise ValueError(f"it has no {name}")
    except FieldTypeError as error:
        error.path = f"{name}.{error.path}" if error.path else name
        raise
    return values


_FIELDS: dict[type, Fields] = {}


def find_fields(cls: type) -> Fields:
    """Return the fields of a class, with their checks."""
    is_message = not hasattr(cls, "__dataclass_fields__")
    fields: dict[str, Field] = {}
    for base in reversed(cls.__mro__):
        for name, text in _own_annotations(base).items():
            fields[name] = name, *_make_check(text, base, is_message), _has_default(cls, name)
    _FIELDS[cls] = tuple(fields.values())
    return _FIELDS[cls]


def find_annotations(cls: type) -> dict[str, str]:
    """Return the text of each field's annotation."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        texts.update(_own_annotations(base))
    return texts


def _own_annotations(cls: type) -> dict[str, str]:
    texts: dict[str, str] = getattr(cls, "__annotations__", {})
    return {name: text for name, text in texts.items() if not text.startswith("ClassVar")}


def _has_default(cls: type, name: str) -> bool:
    if (fields := getattr(cls, "__dataclass_fields__", None)) is None:
        return hasattr(cls, name)
    from dataclasses import MISSING

    return not (fields[name].default is MISSING and fields[name].default_factory is MISSING)


# -- checks ------------------------------------------------------------------------------------


def _make_check(text: str, owner: type, is_message: bool) -> TypedCheck:
    """Return the check for an annotation. Class names are looked up in the module of `owner`."""
    if text == "float" and not is_message:
        return float, _read_float
    if text in _WORDS:
        return _WORDS[text]
    if text.endswith(" | None"):
        plain, check = _make_check(text.removesuffix(" | None"), owner, is_message)
        return plain, lambda value: None if value is None else check(value)
    container, bracket, inner = text.partition("[")
    if bracket:
        inner = inner.removesuffix("]").removesuffix(", ...").removeprefix("str, ")
        return None, _CONTAINERS[container](*_make_check(inner, owner, is_message))
    if text in _LATE:
        return None, _make_late_check(text, is_message)
    return None, _make_class_check(vars(sys.modules[owner.__module__])[text], is_message)


def _make_late_check(name: str, is_message: bool) -> Check:
    @cache
    def find() -> Check:
        from importlib import import_module

        return _make_class_check(
            getattr(import_module(f"windlass.{_LATE[name]}"), name), is_message
        )

    return lambda value: find()(value)


def _make_class_check(cls: Any, is_message: bool) -> Check:
    """Return the check for an enum, a message, a dataclass or a union of dataclasses."""
    if hasattr(cls, "__members__"):
        return _make_enum_check(cls)
    if hasattr(cls, "given_fields"):  # a message
        return _make_message_check(cls)
    if is_message:  # a message from this process may hold the record itself
        return lambda value: value if isinstance(value, cls) else read(cls, value)
    return _class_check(cls)


def _make_enum_check(cls: Any) -> Check:
    members = {member.value: member for member in cls}

    def check(value: Any) -> Any:
        if type(value) is not str or value not in members:
            raise FieldTypeError(value, cls.__name__)
        return members[value]

    return check


def _make_message_check(cls: Any) -> Check:
    def check(value: Any) -> Any:
        if type(value) is not dict:
            raise FieldTypeError(value, cls.__name__)
        return cls.read(value)

    return check


@cache
def _class_check(cls: Any) -> Check:
    """Return the check for a dataclass or a union of dataclasses."""
    if kinds := {getattr(member, "kind", ""): member for member in getattr(cls, "__args__", ())}:
        return _make_kind_check(kinds)

    def check(value: Any) -> Any:
        if type(value) is not dict:
            raise FieldTypeError(value, cls.__name__)
        return cls(**read_fields(cls, value))

    return check


def _make_kind_check(kinds: dict[str, Any]) -> Check:
    checks = {kind: _class_check(cls) for kind, cls in kinds.items()}

    def check(value: Any) -> Any:
        if type(value) is not dict:
            raise FieldTypeError(value, "an object")
        kind = value.get("kind")
        if type(kind) is not str or kind not in checks:
            raise ValueError(f"unknown kind {kind!r:.60}")
        return checks[kind](value)

    return check


def _make_list_check(make: Callable[[Any], Any]) -> Callable[[type | None, Check], Check]:
    def make_check(plain: type | None, inner: Check) -> Check:
        def check(value: Any) -> Any:
            if type(value) is not list and type(value) is not tuple:
                raise FieldTypeError(value, "a list")
            return make([one if type(one) is plain else inner(one) for one in value])

        return check

    return make_check


def _make_dict_check(plain: type | None, inner: Check) -> Check:
    def check(value: Any) -> Any:
        if type(value) is not dict:
            raise FieldTypeError(value, "an object")
        return {key: one if type(one) is plain else inner(one) for key, one in value.items()}

    return check


_CONTAINERS = {
    "Sequence": _make_list_check(lambda items: items),
    "tuple": _make_list_check(tuple),
    "frozenset": _make_list_check(frozenset),
    "Mapping": _make_dict_check,
    "dict": _make_dict_check,
}


def _refuse(expected: str) -> Check:
    """Return the check for a type without further conditions. It refuses any value of another type."""

    def check(value: Any) -> Any:
        raise FieldTypeError(value, expected)

    return check


def _check_int(value: Any) -> Any:
    if type(value) is int and -_MAX_INT < value < _MAX_INT:
        return value
    raise FieldTypeError(value, "a whole number")


def _check_count(value: Any) -> Any:
    if type(value) is int and 0 <= value < _MAX_INT:
        return value
    raise FieldTypeError(value, "count")


def _check_port(value: Any) -> Any:
    if type(value) is int and 0 <= value <= _MAX_PORT:
        return value
    raise FieldTypeError(value, "port")


def _check_number(value: Any) -> Any:
    if (type(value) is float or type(value) is int) and isfinite(value):
        return value
    raise FieldTypeError(value, "number")


def _read_float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise FieldTypeError(value, "number") from None


def _check_metric(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise FieldTypeError(value, "a number or text")


_WORDS: dict[str, TypedCheck] = {
    "str": (str, _refuse("str")),
    "bool": (bool, _refuse("bool")),
    "int": (None, _check_int),
    "Count": (None, _check_count),
    "Port": (None, _check_port),
    "float": (None, _check_number),
    "Metric": (None, _check_metric),
    "float | int | str | bool | None": (None, _check_metric),
    "JsonObject": (dict, _refuse("JsonObject")),
    "Any": (None, lambda value: value),
}
