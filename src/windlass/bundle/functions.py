"""Contents of a pickled function: code by value, and modules by reference.

Reads the payload with pickletools and never unpickles it. A small symbolic machine follows strings,
tuples, globals and calls. Everything else is opaque to it. It knows how cloudpickle writes functions and
classes, but imports neither cloudpickle nor the user's code.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass
from typing import Any

from windlass.errors import BundleError

_PICKLER = "cloudpickle"
_MAKE_CLASS = frozenset({"_make_skeleton_class", "_make_skeleton_enum"})
# Many payloads name these modules, and every Python has them.
_EVERYWHERE = frozenset({"builtins", "__builtin__", "_codecs"})
_BY_VALUE = _MAKE_CLASS | {"_make_function", "dynamic_subimport"}
# Position of the name among the arguments of a code object since Python 3.8. Since 3.11 the qualified
# name follows it.
_CODE_NAME = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class PickleContents:
    """Functions and classes that a payload contains by value, and modules that it refers to."""

    by_value: bool
    value_names: tuple[str, ...]
    modules: tuple[str, ...]


def read_contents(payload: bytes) -> PickleContents:
    """Return the contents of a pickle without running it."""
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(payload):
            machine.step(opcode, argument)
    except (ValueError, IndexError, KeyError) as error:
        raise BundleError(
            f"the payload is not a readable pickle: {error}", hint="pickle the function again"
        ) from error
    return PickleContents(
        by_value=machine.by_value,
        value_names=tuple(sorted(machine.value_names)),
        modules=tuple(sorted(machine.modules)),
    )


def by_value(payload: bytes) -> bool:
    """Return whether the payload contains code, and not only names in importable modules."""
    return read_contents(payload).by_value


@dataclass(frozen=True, slots=True)
class _Global:
    module: str
    name: str

    def is_pickler(self) -> bool:
        return self.module.partition(".")[0] == _PICKLER


_MARK = object()
_CODE = _Global(_PICKLER, "CodeType")


class _Machine:
    """Symbolic pickle machine that keeps only relevant values. None stands for everything else."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self.by_value = False
        self.value_names: set[str] = set()
        self.modules: set[str] = set()

    def step(self, opcode: pickletools.OpcodeInfo, argument: Any) -> None:
        """Execute one instruction."""
        name = opcode.name
        if "UNICODE" in name:
            self._stack.append(argument)
        elif name == "MARK":
            self._stack.append(_MARK)
        elif name == "DUP":
            self._stack.append(self._stack[-1])
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = self._stack[-1]
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self._memo[int(argument)] = self._stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self._stack.append(self._memo[int(argument)])
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            self._stack.append(self._refer(argument))
        elif name.startswith("TUPLE"):
            self._stack.append(tuple(self._pop(opcode)))
        elif name in ("REDUCE", "NEWOBJ"):
            function, arguments = self._pop(opcode)
            self._stack.append(self._call(function, arguments))
        else:
            self._pop(opcode)
            self._stack.extend([None] * len(opcode.stack_after))

    def _pop(self, opcode: pickletools.OpcodeInfo) -> list[Any]:
        """Remove and return the values that the instruction consumes.

        For a marked slice, return only the part above the mark.
        """
        before = opcode.stack_before
        if pickletools.markobject not in before:
            count = len(before)
            taken = self._stack[len(self._stack) - count :]
            if len(taken) != count:
                raise IndexError("stack underflow")
            del self._stack[len(self._stack) - count :]
            return taken
        mark = len(self._stack) - 1
        while self._stack[mark] is not _MARK:
            mark -= 1
        taken = self._stack[mark + 1 :]
        del self._stack[mark - before.index(pickletools.markobject) :]
        return taken

    def _refer(self, argument: str | None) -> _Global | None:
        if argument is None:
            name, module = self._stack.pop(), self._stack.pop()
        else:
            module, _, name = argument.partition(" ")
        if not isinstance(module, str) or not isinstance(name, str):
            return None
        reference = _Global(module, name)
        if not reference.is_pickler() and module not in _EVERYWHERE:
            self.modules.add(module)
        elif reference.is_pickler() and name in _BY_VALUE:
            self.by_value = True
        return reference

    def _call(self, function: Any, arguments: Any) -> _Global | None:
        if not isinstance(function, _Global) or not isinstance(arguments, tuple):
            return None
        if function == _CODE:
            self.by_value = True
            named = [
                name for name in arguments[_CODE_NAME : _CODE_NAME + 2] if isinstance(name, str)
            ]
            self.value_names.update(named[-1:])
        elif not function.is_pickler():
            return None
        elif function.name == "_builtin_type" and arguments == ("CodeType",):
            return _CODE
        elif function.name in _MAKE_CLASS:
            self.value_names.update(name for name in arguments[1:2] if isinstance(name, str))
        elif function.name == "subimport":
            self.modules.update(name for name in arguments[:1] if isinstance(name, str))
        return None
