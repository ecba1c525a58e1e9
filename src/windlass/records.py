"""Frozen records to and from JSON, driven by their type hints.

A record is a frozen dataclass of str, int, float, bool, None, tuples, mappings, string enums and other
records; one of several records in a union is told by its class's `kind`. Standard library only: the agent
reads the same records inside a node. No record lives here.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from windlass.errors import ProtocolError

T = TypeVar("T")

MAX_JSON_BYTES = 64 << 20  # a status of ten thousand ranks has 2 MiB
MAX_DEPTH = 100


def to_json(value: Any) -> Any:
    """The plain JSON form of a record; tuples become lists, numbers that JSON lacks become text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        data = {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
        kind = getattr(type(value), "kind", None)
        return {"kind": kind, **data} if isinstance(kind, str) else data
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def parse(text: bytes, what: str, *, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """JSON that somebody else wrote: ProtocolError names `what` when it is not that, or a bomb."""
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
    """Whether plain data has more levels than anything here is made for."""
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
    """Build `cls` from its JSON form; unknown keys are ignored so that a newer writer can be read."""
    try:
        built = _read(cls, data)
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise ProtocolError(
            f"cannot read {getattr(cls, '__name__', cls)}: {error}",
            hint="written by another version of Windlass? `windlass doctor` shows the version here",
        ) from error
    return typing.cast(T, built)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _read(hint: Any, data: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _read_union(typing.get_args(hint), data)
    if origin in (tuple, frozenset):
        if not isinstance(data, (list, tuple)):
            raise TypeError(f"expected a list, found {data!r:.60}")
        return origin(_read(typing.get_args(hint)[0], item) for item in data)
    if origin is not None and issubclass(origin, Mapping):
        value_hint = typing.get_args(hint)[1]
        return {key: _read(value_hint, item) for key, item in data.items()}
    if isinstance(hint, type):
        return _read_plain(hint, data)
    return data


def _read_union(members: tuple[Any, ...], data: Any) -> Any:
    if data is None:
        return None
    records = [m for m in members if dataclasses.is_dataclass(m)]
    for member in records:
        if len(records) == 1 or data.get("kind") == getattr(member, "kind", None):
            return _read(member, data)
    if records:
        raise ValueError(f"{data['kind']!r:.60} is not a kind that is known here")
    plain = [m for m in members if m is not type(None)]
    return _read(plain[0], data) if len(plain) == 1 else data


def _read_plain(cls: type, data: Any) -> Any:
    if dataclasses.is_dataclass(cls):
        if not isinstance(data, Mapping):
            raise TypeError(f"expected {cls.__name__}, found {data!r:.60}")
        hints = _hints(cls)
        fields = [f for f in dataclasses.fields(cls) if f.init and f.name in data]
        return cls(**{f.name: _read(hints[f.name], data[f.name]) for f in fields})
    if issubclass(cls, enum.Enum):
        return cls(data)
    if cls is float:
        return float(data)
    if cls in (int, str, bool) and not isinstance(data, cls):
        raise TypeError(f"expected {cls.__name__}, found {data!r:.60}")
    return data
