"""Encoding of the parts of a checkpoint that are not tensors, so that reading them runs no code.

`encode` and `decode` use JSON. It covers what states consist of: nested containers, numbers, texts, bytes,
torch's dtypes, sizes and devices, numpy's numbers and arrays, and the dataclasses that other modules register
with `record`. A value of any other class needs pickle, which the user must allow.

Two parts of a checkpoint are pickles: DCP's own metadata, which torch's tools read, and the entries of
checkpoints that earlier versions wrote. The unpicklers here build data and call nothing. They reject a pickle
that names any other class, before they import or call anything.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import io
import json
import pickle
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import torch
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING
from torch.serialization import _get_layout

from windlass.errors import SpecError

TRUST_HINT = "if you trust its author, accept it with trust_checkpoint=True (--trust-checkpoint)"
_TAG = "~"
_PLAIN_INT = 1 << 63
_FACTORIES: dict[str, Any] = {
    kind.__name__: kind for kind in (int, float, str, bool, list, dict, set)
}
_TORCH_NAMES = (torch.dtype, torch.layout, torch.memory_format)
_RECORDS: dict[str, type] = {}
_Kind = TypeVar("_Kind", bound=type)


class NeedsTrustError(SpecError):
    """A value that only pickle can save or load, which the user has not allowed."""


def record(kind: _Kind) -> _Kind:
    """Register a dataclass or an enum whose values may occur in a checkpoint."""
    _RECORDS[kind.__name__] = kind
    return kind


def encode(value: Any, *, name: str, allow_pickle: bool = False) -> bytes:
    """Return a value as JSON. Raises NeedsTrustError, with `name`, if only pickle can save it."""
    return json.dumps(_Encoder(allow_pickle=allow_pickle).encode(value, name)).encode()


def decode(data: bytes | str, *, name: str, allow_pickle: bool = False) -> Any:
    """Return the value that was passed to `encode`. Raises ValueError for other data."""
    try:
        return _Decoder(name, allow_pickle=allow_pickle).decode(json.loads(data))
    except (AttributeError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise ValueError(f"{name} is damaged: {type(error).__name__}: {error}") from error


def find_tensor_class(module: str, qualname: str) -> type:
    """Return a tensor class that is made of other tensors.

    Raises ValueError for any other name, so that a checkpoint cannot choose what is imported or called. The
    class must be imported already, which the optimizer that uses it does.
    """
    kind: Any = sys.modules.get(module)
    for part in qualname.split("."):
        kind = getattr(kind, part, None)
    if not isinstance(kind, type) or not issubclass(kind, torch.Tensor):
        raise ValueError(f"{module}.{qualname} is not an imported tensor class")  # noqa: TRY004
    if not hasattr(kind, "__tensor_unflatten__"):
        raise ValueError(f"{module}.{qualname} is not a tensor class made of other tensors")
    return kind


class _Encoder:
    def __init__(self, *, allow_pickle: bool) -> None:
        self._allow_pickle = allow_pickle

    def encode(self, value: Any, name: str) -> Any:
        kind = type(value)
        if value is None or kind in (bool, float, str):
            return value
        if kind is int:
            return value if abs(value) < _PLAIN_INT else {_TAG: "int", "hex": hex(value)}
        if kind is list:
            return self._encode_items(value, name)
        if kind is dict and all(type(key) is str and key != _TAG for key in value):
            return {key: self.encode(item, f"{name}.{key}") for key, item in value.items()}
        if kind in (tuple, torch.Size, set, frozenset, deque):
            more = {"maxlen": value.maxlen} if kind is deque else {}
            return {_TAG: kind.__name__, "items": self._encode_items(list(value), name), **more}
        if kind in (dict, OrderedDict, Counter, defaultdict):
            return self._encode_dict(value, name)
        if kind in (bytes, bytearray):
            return {_TAG: kind.__name__, "data": _to_text(bytes(value))}
        if kind is complex:
            return {_TAG: "complex", "parts": [value.real, value.imag]}
        if isinstance(value, _TORCH_NAMES):
            return {_TAG: "torch", "name": str(value).removeprefix("torch.")}
        if kind is torch.device:
            return {_TAG: "device", "name": str(value)}
        if _RECORDS.get(kind.__name__) is kind:
            return self._encode_record(value, name)
        return self._encode_other(value, name)

    def _encode_items(self, items: list[Any], name: str) -> list[Any]:
        return [self.encode(item, f"{name}.{number}") for number, item in enumerate(items)]

    def _encode_dict(self, value: Any, name: str) -> Any:
        factory = getattr(value, "default_factory", None)
        if factory is not None and _FACTORIES.get(getattr(factory, "__name__", "")) is not factory:
            return self._pickle(value, name)
        items = [[self.encode(k, name), self.encode(v, f"{name}.{k}")] for k, v in value.items()]
        more = {"factory": factory.__name__} if factory is not None else {}
        return {_TAG: type(value).__name__, "items": items, **more}

    def _encode_record(self, value: Any, name: str) -> Any:
        kind = type(value)
        if isinstance(value, enum.Enum):
            return {_TAG: kind.__name__, "name": value.name}
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {_TAG: kind.__name__, "fields": self.encode(fields, name)}

    def _encode_other(self, value: Any, name: str) -> Any:
        if isinstance(value, type) and issubclass(value, torch.Tensor):
            return {_TAG: "class", "module": value.__module__, "name": value.__qualname__}
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, (numpy.generic, numpy.ndarray)):
            array = numpy.asarray(value)
            if array.dtype.kind in "biufcSU" and type(value) in (numpy.ndarray, array.dtype.type):
                return {
                    _TAG: "array" if isinstance(value, numpy.ndarray) else "scalar",
                    "dtype": array.dtype.str,
                    "shape": list(array.shape),
                    "data": _to_text(array.tobytes()),
                }
        return self._pickle(value, name)

    def _pickle(self, value: Any, name: str) -> Any:
        if not self._allow_pickle:
            kind = type(value)
            raise NeedsTrustError(
                f"{name} is a {kind.__module__}.{kind.__qualname__}, which only pickle can save, and "
                "loading a pickle can run any code",
                hint="make its state_dict return numbers, strings, tensors and containers of these; or "
                + TRUST_HINT,
            )
        return {_TAG: "pickle", "data": _to_text(pickle.dumps(value))}


class _Decoder:
    def __init__(self, name: str, *, allow_pickle: bool) -> None:
        self._name = name
        self._allow_pickle = allow_pickle

    def decode(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        if _TAG not in value:
            return {key: self.decode(item) for key, item in value.items()}
        tag = value[_TAG]
        if tag in _SIMPLE:
            return _SIMPLE[tag](value)
        if tag in _CONTAINERS:
            items = [self.decode(item) for item in value["items"]]
            return deque(items, value["maxlen"]) if tag == "deque" else _CONTAINERS[tag](items)
        if tag in ("dict", "OrderedDict", "Counter", "defaultdict"):
            return self._decode_dict(tag, value)
        if tag in _RECORDS:
            kind: Any = _RECORDS[tag]
            return kind[value["name"]] if "name" in value else kind(**self.decode(value["fields"]))
        if tag != "pickle":
            raise ValueError(f"{self._name} contains a value of unknown kind {tag!r:.40}")
        if not self._allow_pickle:
            raise NeedsTrustError(
                f"{self._name} contains a pickled object, and loading it can run any code",
                hint=TRUST_HINT,
            )
        return pickle.loads(_to_bytes(value["data"]))  # noqa: S301 - the user has allowed it

    def _decode_dict(self, tag: str, value: Any) -> Any:
        items = {self.decode(key): self.decode(item) for key, item in value["items"]}
        if tag == "defaultdict":
            return defaultdict(_FACTORIES[value["factory"]] if "factory" in value else None, items)
        return {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}[tag](items)


def _to_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _to_bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _read_array(value: Any) -> Any:
    import numpy

    dtype = numpy.dtype(value["dtype"])
    if dtype.kind not in "biufcSU":
        raise ValueError(f"arrays of {dtype} are never saved")
    array = numpy.frombuffer(_to_bytes(value["data"]), dtype).reshape(value["shape"])
    return array[()] if value[_TAG] == "scalar" else array.copy()


def _read_torch_name(value: Any) -> Any:
    named = getattr(torch, value["name"], None)
    if not isinstance(named, _TORCH_NAMES):
        raise ValueError(f"torch.{value['name']!s:.40} is not a dtype")  # noqa: TRY004
    return named


_CONTAINERS: dict[str, Callable[[Any], Any]] = {
    kind.__name__: kind for kind in (tuple, torch.Size, set, frozenset, deque)
}
_SIMPLE: dict[str, Callable[[Any], Any]] = {
    "int": lambda value: int(value["hex"], 16),
    "bytes": lambda value: _to_bytes(value["data"]),
    "bytearray": lambda value: bytearray(_to_bytes(value["data"])),
    "complex": lambda value: complex(*value["parts"]),
    "torch": _read_torch_name,
    "device": lambda value: torch.device(value["name"]),
    "class": lambda value: find_tensor_class(value["module"], value["name"]),
    "scalar": _read_array,
    "array": _read_array,
}


# Pickles.


_DCP_CLASSES = (
    *(dcp.Metadata, dcp.MetadataIndex, dcp.StorageMeta, dcp.TensorProperties),
    *(dcp.TensorStorageMetadata, dcp.BytesStorageMetadata, dcp.ChunkStorageMetadata),
    *(_MEM_FORMAT_ENCODING, _StorageInfo),
)
_BUILTINS = (set, frozenset, bytearray, complex, int, float, str, bool, list, dict, tuple)
_COLLECTIONS = (OrderedDict, Counter, defaultdict, deque)
# Pickles of earlier versions refer to these records by their former modules.
_MOVED = {
    ("windlass.train.checkpoint_state", "TensorAt"),
    ("windlass.train.wrapped_tensors", "WrappedAt"),
}


def load_metadata(data: bytes, files: Collection[str]) -> dcp.Metadata:
    """Return DCP's metadata. Raises ValueError if it is anything else, or names other files than these."""
    with _ClassGuard():
        metadata = _MetadataUnpickler(io.BytesIO(data)).load()
    if not isinstance(metadata, dcp.Metadata) or not isinstance(metadata.storage_data, dict):
        raise ValueError("its .metadata is not DCP's")  # noqa: TRY004
    if not isinstance(metadata.state_dict_metadata, dict):
        raise ValueError("its .metadata has no table of tensors")  # noqa: TRY004
    for place in metadata.storage_data.values():
        if not isinstance(place, _StorageInfo) or place.relative_path not in files:
            raise ValueError(f"its .metadata names {place!r:.80}, which the manifest does not")
    return metadata


def load_entry(data: bytes, *, name: str, allow_pickle: bool) -> Any:
    """Return an entry that an earlier version pickled."""
    if allow_pickle:
        return _TrustedUnpickler(io.BytesIO(data)).load()
    with _ClassGuard():
        return _EntryUnpickler(io.BytesIO(data), name).load()


class _ClassGuard:
    """Context that restores the classes that a pickle may name, because it can also set their attributes."""

    def __enter__(self) -> None:
        moved = (_RECORDS[name] for _, name in _MOVED)
        kinds = (*_DCP_CLASSES, *moved, OrderedDict, Counter)
        self._before = {kind: dict(vars(kind)) for kind in kinds}

    def __exit__(self, *_: object) -> None:
        changed = False
        for kind, before in self._before.items():
            now = dict(vars(kind))
            if now != before:
                changed = True
                _restore_class(kind, before, now)
        if changed:
            raise ValueError("it sets attributes of classes, which a valid checkpoint never does")


def _restore_class(kind: type, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name in now.keys() - before.keys():
        delattr(kind, name)
    for name, value in before.items():
        if now.get(name) is not value:
            setattr(kind, name, value)


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        allowed = _find_in(_DCP_CLASSES, module, name)
        if allowed is None:
            allowed = _find_torch(module, name)
        if allowed is None:
            raise ValueError(f"its .metadata names {module}.{name}, which is not DCP's")
        return allowed


class _TrustedUnpickler(pickle.Unpickler):
    """Unpickler for checkpoints that the user trusts. It may import and call anything."""

    def find_class(self, module: str, name: str) -> Any:
        return _find_moved(module, name) or super().find_class(module, name)


class _EntryUnpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, name: str) -> None:
        super().__init__(stream)
        self._name = name

    def find_class(self, module: str, name: str) -> Any:
        known = (*_BUILTINS, *_COLLECTIONS)
        allowed = _find_moved(module, name) or _find_in(known, module, name)
        allowed = allowed or _find_torch(module, name)
        if allowed is None:
            allowed = _NUMPY.get((module.replace("numpy.core", "numpy._core"), name))
        if allowed is None and (module, name) == ("_codecs", "encode"):
            allowed = _encode_latin1
        if allowed is not None:
            return allowed
        try:
            return find_tensor_class(module, name)
        except ValueError:
            raise NeedsTrustError(
                f"{self._name} contains a {module}.{name}, and loading it can run any code",
                hint=TRUST_HINT,
            ) from None


def _find_moved(module: str, name: str) -> Any:
    return _RECORDS[name] if (module, name) in _MOVED else None


def _find_in(kinds: Collection[Any], module: str, name: str) -> Any:
    return next((k for k in kinds if (k.__module__, k.__qualname__) == (module, name)), None)


def _find_torch(module: str, name: str) -> Any:
    """Return the torch object of this name if it is safe to load (a dtype, size, device or layout)."""
    if (module, name) == ("torch.serialization", "_get_layout"):
        return _get_layout
    if module != "torch":
        return None
    if name in ("Size", "device"):
        return getattr(torch, name)
    allowed = getattr(torch, name, None)
    return allowed if isinstance(allowed, (torch.dtype, torch.layout)) else None


def _encode_latin1(text: str, encoding: str = "latin1") -> bytes:
    """Replace `_codecs.encode`, which pickle's protocol 2 calls for bytes."""
    if encoding != "latin1":
        raise ValueError(f"bytes in the encoding {encoding!r:.20}")
    return text.encode("latin1")


class _Dtype:
    """Replacement for numpy's dtype, whose own state can contain any object."""

    def __init__(self, code: str, *_: Any) -> None:
        self.code, self.order = str(code), "="

    def __setstate__(self, state: Any) -> None:
        self.order = str(state[1])


def _read_scalar(dtype: _Dtype, data: bytes) -> Any:
    import numpy

    kind = numpy.dtype(dtype.code)
    if dtype.order == ">":
        kind = kind.newbyteorder(">")
    if kind.kind not in "biufc":
        raise ValueError(f"a numpy number of {kind}")
    return numpy.frombuffer(data, kind)[0]


_NUMPY: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): _Dtype,
    ("numpy._core.multiarray", "scalar"): _read_scalar,
}
