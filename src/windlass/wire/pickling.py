"""Pickling of values that are sent between processes, with errors that name the part that fails.

Ranks pickle the values they return, and clients the values they send. The pickle is complete, or its large
buffers become separate segments (see `wire.payloads`). Tensors keep their class and move to the CPU. This
module depends only on cloudpickle. It uses torch only if the user's code has imported it or a tensor must be
rebuilt.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import pickle
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from windlass.errors import BundleError

IN_BAND_BYTES = 32 << 10  # smaller tensors are not worth a separate buffer


def reduce_tensor(torch: Any, tensor: Any) -> Any:
    """Return pickle's reduction of a tensor, or None to use torch's own."""
    if tensor.device.type == "meta" or _wraps_tensor(torch, tensor):
        return None
    on_cpu = tensor if tensor.device.type == "cpu" else _bring_to_cpu(tensor)
    reduced = _reduce_to_buffer(torch, on_cpu) if _is_plain(torch, on_cpu) else None
    if reduced is None and on_cpu is not tensor:
        return on_cpu.__reduce_ex__(2)
    return reduced


def _wraps_tensor(torch: Any, tensor: Any) -> bool:
    """Return whether a tensor is a wrapper whose inner tensor is pickled separately, like a parameter.

    A parameter made from a subclass's tensor belongs to that subclass and is not such a wrapper.
    """
    has_own_reduce = type(tensor).__reduce_ex__ is not torch.Tensor.__reduce_ex__
    return has_own_reduce and isinstance(tensor, torch.nn.Parameter)


def _bring_to_cpu(tensor: Any) -> Any:
    """Return a copy on the CPU with the same class, attributes and `requires_grad`."""
    on_cpu = tensor.detach().cpu().requires_grad_(tensor.requires_grad)
    if type(on_cpu) is not type(tensor):
        on_cpu = on_cpu.as_subclass(type(tensor))
    attributes = vars(on_cpu)
    attributes.update({name: vars(tensor)[name] for name in vars(tensor).keys() - attributes})
    return on_cpu


def _is_plain(torch: Any, tensor: Any) -> bool:
    """Return whether a tensor consists only of contiguous elements."""
    is_dense = tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_quantized)
    is_whole = type(tensor) is torch.Tensor and is_dense and tensor.is_contiguous()
    return is_whole and not tensor.is_conj() and not tensor.is_neg()


def _reduce_to_buffer(torch: Any, tensor: Any) -> Any:
    num_bytes = tensor.numel() * tensor.element_size()
    is_part = 0 < num_bytes < tensor.untyped_storage().nbytes()  # torch would pickle all of it
    if num_bytes < IN_BAND_BYTES and not is_part:
        return None
    # Ranks unload Windlass's modules, and pickle stores this function by name, so it must be importable.
    build = getattr(importlib.import_module(__name__), "build_tensor", None)
    if build is None:
        return None
    with contextlib.suppress(RuntimeError):  # numpy is missing
        flat = tensor.detach().reshape(-1).view(torch.uint8).numpy()
        dtype = str(tensor.dtype).removeprefix("torch.")
        about = (dtype, tuple(tensor.shape), tensor.requires_grad, dict(vars(tensor)))
        return build, (pickle.PickleBuffer(flat), *about)
    return None


def build_tensor(
    data: Any,
    dtype: str,
    shape: tuple[int, ...],
    requires_grad: bool,
    attributes: Mapping[str, Any],
) -> Any:
    """Return a tensor that uses `data` as its memory."""
    torch: Any = importlib.import_module("torch")  # the user's torch
    if memoryview(data).readonly:
        data = bytearray(data)
    flat = torch.frombuffer(data, dtype=torch.uint8)
    tensor = flat.view(getattr(torch, dtype)).reshape(shape).requires_grad_(requires_grad)
    vars(tensor).update(attributes)
    return tensor


_MAX_DEPTH = 64
_HEAP_TYPE = 1 << 9  # flag of a class that was defined in Python
_WHAT = {
    "generator": "a generator cannot be pickled; return list(...) of it",
    "async_generator": "an async generator cannot be pickled; collect it into a list",
    "coroutine": "a coroutine cannot be pickled; await it first",
    "lock": "a lock cannot be pickled; make it where it is used",
    "RLock": "a lock cannot be pickled; make it where it is used",
    "TextIOWrapper": "an open file cannot be pickled; pass its path",
    "BufferedReader": "an open file cannot be pickled; pass its path",
    "BufferedWriter": "an open file cannot be pickled; pass its path",
    "socket": "a socket cannot be pickled; connect where it is used",
    "Thread": "a thread cannot be pickled",
    "module": "this module cannot be pickled",
    "frame": "a stack frame cannot be pickled",
    "ProcessGroup": "a process group belongs to its rank; return plain values",
}


def dump(
    value: Any, *, name: str, keep_in_band: Callable[[pickle.PickleBuffer], bool] | None = None
) -> bytes:
    """Pickle `value`. An error names the part that cannot be pickled, starting at `name`.

    The pickle includes large buffers, except those for which `keep_in_band` returns False.
    """
    out = io.BytesIO()
    try:
        _make_pickler(out, keep_in_band).dump(value)
    except Exception as error:
        raise make_pickling_error(value, name, error) from error
    return out.getvalue()


def make_pickling_error(value: Any, name: str, error: Exception) -> BundleError:
    """Return the error for a value that could not be pickled."""
    if isinstance(error.__cause__ or error, RecursionError):  # cloudpickle wraps it
        return BundleError(f"{name} is nested too deeply to be pickled")
    path, why = explain_pickling(value, name)
    return BundleError(f"{path}: {why or error}", hint=_hint(why))


def _hint(why: str) -> str:
    return "" if why else "only values that can be pickled can be sent to other processes"


def _make_pickler(
    out: io.BytesIO, keep_in_band: Callable[[pickle.PickleBuffer], bool] | None = None
) -> Any:
    import cloudpickle

    pickler = _pickler_class(cloudpickle, getattr(sys.modules.get("torch"), "Tensor", None))
    return pickler(out, protocol=5, buffer_callback=keep_in_band)


@functools.lru_cache(maxsize=4)
def _pickler_class(cloudpickle: Any, tensor: Any) -> Any:
    """Return a Pickler class that moves tensors to the CPU and keeps exceptions complete."""

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
    """Return pickle's reduction of an exception, or None if its class defines its own.

    The exception is rebuilt from its arguments and attributes, without calling its `__init__`.
    """
    kind = type(error)
    is_own = (kind.__reduce__, kind.__reduce_ex__) != (
        BaseException.__reduce__,
        object.__reduce_ex__,
    )
    if is_own:
        return None
    # Ranks unload Windlass's modules, and pickle stores this function by name, so it must be importable.
    build = getattr(importlib.import_module(__name__), "build_error", None)
    return None if build is None else (build, (kind, error.args), vars(error) or None)


def build_error(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """Return an exception of this class with these arguments, without running the class's code."""
    built_in = next(base for base in kind.__mro__ if not base.__flags__ & _HEAP_TYPE)
    error: BaseException = built_in.__new__(kind, *args)
    # sets the state that built-in exceptions keep besides their arguments, such as SystemExit.code
    with contextlib.suppress(Exception):
        built_in.__init__(error, *args)  # type: ignore[misc]
    return error


def explain_pickling(value: Any, name: str) -> tuple[str, str]:
    """Return the path of the innermost value that cannot be pickled, and why (empty if unknown)."""
    path, seen = name, {id(value)}
    for _ in range(_MAX_DEPTH):
        culprit = next(
            ((p, v) for p, v in _parts(path, value) if id(v) not in seen and not _can_pickle(v)),
            None,
        )
        if culprit is None:
            break
        path, value = culprit
        seen.add(id(value))
    kind = type(value).__name__
    return path, _WHAT.get(kind, "" if value is None else f"a {kind} cannot be pickled")


def _can_pickle(value: Any) -> bool:
    try:
        _make_pickler(io.BytesIO()).dump(value)
    except Exception:  # noqa: BLE001 - a user's __reduce__ may raise anything
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
            with contextlib.suppress(ValueError):  # the cell is empty
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
    """Yield the parts of an object that pickle stores: attributes, slots, list items and dict items."""
    try:
        reduced = value.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
    except Exception:  # noqa: BLE001 - the object or one of its attributes cannot be pickled
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
    """Yield the names that a function looks up, including those of functions inside it."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)
