"""Base class of all messages between processes: frozen records with a check for each field.

`windlass.records` has the checks. A message is checked once, on arrival. A Direction lists the kinds that
one side may send. Ranks and the fork server import this module, so it imports no dataclasses and no typing
at run time.
"""

from __future__ import annotations

from windlass.errors import ProtocolError
from windlass.records import FieldTypeError, find_annotations, read_fields

TYPE_CHECKING = False


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, ClassVar

    from typing_extensions import Self, dataclass_transform

    # types that annotations may use besides Python's own
    Count = int  # not negative
    Port = int
    Metric = float | int | str | bool | None
    JsonObject = dict[str, Any]  # any values
    Handlers = dict[type["Message"], Callable[..., Any]]  # a receiver's handler for each kind
else:
    Count = Port = Metric = JsonObject = Handlers = None

    def dataclass_transform(**_options):
        return lambda cls: cls


_fill = object.__setattr__  # replaces the whole __dict__, which holds the fields of a message


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Message:
    """One kind of message. An omitted field has its default and is not sent."""

    kind: ClassVar[str] = ""
    tag: ClassVar[str] = "type"  # the key of the kind in the header

    def __init_subclass__(cls, *, kind: str = "") -> None:
        cls.kind = kind

    def __init__(self, **fields: Any) -> None:
        _fill(self, "__dict__", fields)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be changed: use replaced()")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        names = find_annotations(type(self))
        return all(getattr(self, name) == getattr(other, name) for name in names)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({fields})"

    def to_header(self) -> dict[str, Any]:
        """Return the kind and the given fields. `records.to_json` encodes their values."""
        return {self.tag: self.kind, **self.__dict__}

    def given_fields(self) -> Mapping[str, Any]:
        """Return the fields that were given, by name."""
        return self.__dict__

    def has_field(self, name: str) -> bool:
        """Return whether a field was given, even as None."""
        return name in self.__dict__

    def replaced(self, **fields: Any) -> Self:
        """Return a copy with some fields changed."""
        return type(self)(**{**self.__dict__, **fields})

    @classmethod
    def read(cls, header: Mapping[str, Any]) -> Self:
        """Return the message in a header. Raise ProtocolError if it is malformed."""
        try:
            values = read_fields(cls, header)
        except ValueError as error:
            what = _describe(error) if isinstance(error, FieldTypeError) else error
            kind = cls.kind or cls.__name__
            raise ProtocolError(f"a malformed message ({kind}): {what}") from error
        message = cls.__new__(cls)
        _fill(message, "__dict__", values)
        return message


def _describe(error: FieldTypeError) -> str:
    expected = error.expected if " " in error.expected else f"a {error.expected}"
    return f"its {error.path} is {error.value!r:.60}, not {expected}"


class Direction:
    """Messages that one side may send to the other, by kind."""

    def __init__(self, sender: str, receiver: str, about: str, *kinds: type[Message]) -> None:
        self.sender = sender
        self.receiver = receiver
        self.about = about
        self.kinds = {cls.kind: cls for cls in kinds}
        self._tag = kinds[0].tag

    def read(self, header: Any) -> Message:
        """Return the message in a header. Raise ProtocolError if the sender may not send its kind."""
        try:
            cls = self.kinds[header[self._tag]]
        except (KeyError, TypeError):  # TypeError: the header or its kind has a wrong type
            kind = header.get(self._tag) if isinstance(header, dict) else None
            raise ProtocolError(
                f"the {self.sender} may not send {kind!r:.40} to the {self.receiver}",
                hint="use the same version of Windlass on both sides",
            ) from None
        return cls.read(header)
