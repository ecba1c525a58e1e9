"""Values that cross between processes: pickling them, and saying clearly why one cannot travel.

Used by ranks for what they return and by clients for what they send, whole or in the segments of
`wire.payloads`. cloudpickle only; torch is touched only when the user's own code has imported it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from windlass.errors import BundleError
from windlass.wire.tensor_pickling import reduce_tensor

_MAX_DEPTH = 64
_HEAP_TYPE = 1 << 9  # of a class that Python code made
_WHAT = {
    "generator": "a generator cannot travel; return list(...) of it",
    "async_generator": "an async generator cannot travel; collect it into a list",
    "coroutine": "a coroutine cannot travel; await it first",
    "lock": "a lock cannot travel; make it where it is used",
    "RLock": "a lock cannot travel; make it where it is used",
    "TextIOWrapper": "an open file cannot travel; pass its path",
    "BufferedReader": "an open file cannot travel; pass its path",
    "BufferedWriter": "an open file cannot travel; pass its path",
    "socket": "a socket cannot travel; connect where it is used",
    "Thread": "a thread cannot travel",
    "module": "this module cannot travel",
    "frame": "a stack frame cannot travel",
    "ProcessGroup": "a process group belongs to its rank; return plain values",
}


def dump(
    value: Any, *, name: str, keep_aside: Callable[[pickle.PickleBuffer], bool] | None = None
) -> bytes:
    """Pickle `value`; what cannot travel is named by its path, starting at `name`.

    Large buffers are inside the pickle, but for those that `keep_aside` takes (it returns False for them).
    """
    out = io.BytesIO()
    try:
        _make_pickler(out, keep_aside).dump(value)
    except Exception as error:
        raise cannot_travel(value, name, error) from error
    return out.getvalue()


def cannot_travel(value: Any, name: str, error: Exception) -> BundleError:
    """What to say of a value that pickling failed on."""
    if isinstance(error.__cause__ or error, RecursionError):  # cloudpickle wraps it
        return BundleError(f"{name} is nested too deeply to travel")
    path, why = explain_pickling(value, name)
    return BundleError(f"{path}: {why or error}", hint=_hint(why))


def _hint(why: str) -> str:
    return "" if why else "only values that pickle can travel between processes"


def _make_pickler(
    out: io.BytesIO, keep_aside: Callable[[pickle.PickleBuffer], bool] | None = None
) -> Any:
    import cloudpickle

    pickler = _pickler_class(cloudpickle, getattr(sys.modules.get("torch"), "Tensor", None))
    return pickler(out, protocol=5, buffer_callback=keep_aside)


@functools.lru_cache(maxsize=4)
def _pickler_class(cloudpickle: Any, tensor: Any) -> Any:
    """cloudpickle's pickler; tensors travel on the CPU (`wire.tensor_pickling`), exceptions whole."""

    class WholePickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            reduced = None
            if tensor is not None and isinstance(obj, tensor):
                reduced = reduce_tensor(sys.modules["torch"], obj)
            elif isinstance(obj, BaseException):
                reduced = reduce_error(obj)
            return super().reducer_override(obj) if reduced is None else reduced

    return WholePickler


def reduce_error(error: BaseException) -> Any:
    """How an exception travels that does not say so itself: as it is, whatever its `__init__` wants."""
    kind = type(error)
    is_own = (kind.__reduce__, kind.__reduce_ex__) != (
        BaseException.__reduce__,
        object.__reduce_ex__,
    )
    if is_own:
        return None
    # ranks have forgotten our modules: by its name it travels only where it can be found by it
    build = getattr(importlib.import_module(__name__), "build_error", None)
    return None if build is None else (build, (kind, error.args), vars(error) or None)


def build_error(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """An exception of this class with these arguments; no code of the class is run for it."""
    built_in = next(base for base in kind.__mro__ if not base.__flags__ & _HEAP_TYPE)
    error: BaseException = built_in.__new__(kind, *args)
    with contextlib.suppress(Exception):  # what Python keeps beside the arguments, such as a code
        built_in.__init__(error, *args)  # type: ignore[misc]
    return error


def explain_pickling(value: Any, name: str) -> tuple[str, str]:
    """The path of the innermost thing that cannot travel, and why (empty when nothing is known)."""
    path, seen = name, {id(value)}
    for _ in range(_MAX_DEPTH):
        culprit = next(
            ((p, v) for p, v in _parts(path, value) if id(v) not in seen and not _travels(v)), None
        )
        if culprit is None:
            break
        path, value = culprit
        seen.add(id(value))
    kind = type(value).__name__
    return path, _WHAT.get(kind, "" if value is None else f"a {kind} cannot travel")


def _travels(value: Any) -> bool:
    try:
        _make_pickler(io.BytesIO()).dump(value)
    except Exception:  # noqa: BLE001 - any exception of a user's __reduce__ means: it does not travel
        return False
    return True


def _parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"{path}[{key!r}]", item
            yield f"a key of {path}", key
    elif isinstance(value, (list, tuple, set, frozenset)):
        for index, item in enumerate(value):
            yield f"{path}[{index}]", item
    elif isinstance(value, types.FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
        for free, cell in cells:
            with contextlib.suppress(ValueError):  # nothing in it yet
                yield f"{path} uses {free!r}", cell.cell_contents
        used = (n for n in _names(value.__code__) if n in value.__globals__)
        yield from ((f"{path} uses {n!r}", value.__globals__[n]) for n in used)
    elif isinstance(value, types.MethodType):
        yield f"{path}.__self__", value.__self__
    elif hasattr(value, "func") and hasattr(value, "keywords"):
        yield from ((f"{path}.func", value.func), (f"{path}.args", value.args))
        yield f"{path}.keywords", value.keywords
    if not isinstance(value, (type, types.FunctionType, types.MethodType)):
        yield from _reduced_parts(path, value)


def _reduced_parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What pickle makes of an object: its attributes, slots too, and what it holds as a list or a dict."""
    try:
        reduced = value.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
    except Exception:  # noqa: BLE001 - one that refuses is itself the culprit, or its attributes are
        reduced = (None, (), getattr(value, "__dict__", None))
    if not isinstance(reduced, tuple):
        return
    _, args, state, items, pairs = (*reduced, None, None, None)[:5]
    states = state if isinstance(state, tuple) and len(state) == 2 else (state,)
    for attributes in states:
        if isinstance(attributes, dict):
            yield from ((f"{path}.{name}", item) for name, item in attributes.items())
        elif attributes is not None:
            yield path, attributes
    yield from ((f"{path}[{index}]", item) for index, item in enumerate(items or ()))
    yield from ((f"{path}[{key!r}]", item) for key, item in pairs or ())
    yield from ((path, item) for item in args if not isinstance(item, type))


def _names(code: types.CodeType) -> Iterator[str]:
    """Names that a function, or a function or comprehension inside it, looks up."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)
