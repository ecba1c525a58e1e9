"""Unpicklers that build data and call nothing: for DCP's metadata, and for entries of old checkpoints.

DCP's own file is a pickle, since torch's tools read it. Entries that are not tensors were pickled by
earlier versions, and are JSON now (state_json). A pickle that names any other class is refused by that
name before anything of it is imported or called.
"""

from __future__ import annotations

import io
import pickle
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING
from torch.serialization import _get_layout

from windlass.train.checkpoint.state_json import TRUST_HINT, NeedsTrustError, find_tensor_class
from windlass.train.checkpoint.training_state import TensorAt, WrappedAt

_DCP_CLASSES = (
    *(dcp.Metadata, dcp.MetadataIndex, dcp.StorageMeta, dcp.TensorProperties),
    *(dcp.TensorStorageMetadata, dcp.BytesStorageMetadata, dcp.ChunkStorageMetadata),
    *(_MEM_FORMAT_ENCODING, _StorageInfo),
)
_BUILTINS = (set, frozenset, bytearray, complex, int, float, str, bool, list, dict, tuple)
_CONTAINERS = (OrderedDict, Counter, defaultdict, deque)
# Pickles of earlier versions name these by the modules that they were in then.
_MOVED: dict[tuple[str, str], Any] = {
    ("windlass.train.checkpoint_state", "TensorAt"): TensorAt,
    ("windlass.train.wrapped_tensors", "WrappedAt"): WrappedAt,
}


def load_metadata(data: bytes, files: Collection[str]) -> dcp.Metadata:
    """Return DCP's metadata. Raises ValueError if it is anything else, or names other files than these."""
    with _Unchanged():
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
    """Return an entry that an earlier version has pickled."""
    if allow_pickle:
        return _TrustedUnpickler(io.BytesIO(data)).load()
    with _Unchanged():
        return _EntryUnpickler(io.BytesIO(data), name).load()


class _Unchanged:
    """Guards the classes that an unpickler hands out: a pickle can also set attributes of a class."""

    _KINDS = (*_DCP_CLASSES, TensorAt, WrappedAt, OrderedDict, Counter)

    def __enter__(self) -> None:
        self._before = {kind: dict(vars(kind)) for kind in self._KINDS}

    def __exit__(self, *_: object) -> None:
        changed = False
        for kind, before in self._before.items():
            now = dict(vars(kind))
            if now != before:
                changed = True
                _put_back(kind, before, now)
        if changed:
            raise ValueError("it sets attributes of classes, which no checkpoint does")


def _put_back(kind: type, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
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
    """For checkpoints whose code the user has allowed to run."""

    def find_class(self, module: str, name: str) -> Any:
        return _MOVED.get((module, name)) or super().find_class(module, name)


class _EntryUnpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, name: str) -> None:
        super().__init__(stream)
        self._name = name

    def find_class(self, module: str, name: str) -> Any:
        known = (*_BUILTINS, *_CONTAINERS)
        allowed = _MOVED.get((module, name)) or _find_in(known, module, name)
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
                f"{self._name} holds a {module}.{name}, and loading it can run any code",
                hint=TRUST_HINT,
            ) from None


def _find_in(kinds: Collection[Any], module: str, name: str) -> Any:
    return next((k for k in kinds if (k.__module__, k.__qualname__) == (module, name)), None)


def _find_torch(module: str, name: str) -> Any:
    """Return one of torch's harmless names: its dtypes, sizes, devices and layouts."""
    if (module, name) == ("torch.serialization", "_get_layout"):
        return _get_layout
    if module != "torch":
        return None
    if name in ("Size", "device"):
        return getattr(torch, name)
    allowed = getattr(torch, name, None)
    return allowed if isinstance(allowed, (torch.dtype, torch.layout)) else None


def _encode_latin1(text: str, encoding: str = "latin1") -> bytes:
    """Return bytes as protocol 2 writes them."""
    if encoding != "latin1":
        raise ValueError(f"bytes in the encoding {encoding!r:.20}")
    return text.encode("latin1")


class _Dtype:
    """Stands for numpy's dtype, whose own state can hold anything."""

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
