"""Pickling of tensors: they keep their class and move to the CPU.

Large tensors become buffers that can stay outside the pickle. `wire.pickling` calls this module with the
user's torch. This module imports torch only when it rebuilds a tensor.
"""

from __future__ import annotations

import contextlib
import importlib
import pickle
from collections.abc import Mapping
from typing import Any

IN_BAND_BYTES = 32 << 10  # smaller tensors are not worth a separate buffer


def reduce_tensor(torch: Any, tensor: Any) -> Any:
    """Return pickle's reduction of a tensor or subclass, or None to use torch's own."""
    if tensor.device.type == "meta" or _is_around_another(torch, tensor):
        return None
    on_cpu = tensor if tensor.device.type == "cpu" else _bring_to_cpu(tensor)
    reduced = _reduce_to_buffer(torch, on_cpu) if _is_plain(torch, on_cpu) else None
    if reduced is None and on_cpu is not tensor:
        return on_cpu.__reduce_ex__(2)
    return reduced


def _is_around_another(torch: Any, tensor: Any) -> bool:
    """Return whether a tensor is a wrapper whose inner tensor is pickled separately, like a parameter.

    A parameter made from a subclass's tensor belongs to that subclass and is not such a wrapper.
    """
    has_own_way = type(tensor).__reduce_ex__ is not torch.Tensor.__reduce_ex__
    return has_own_way and isinstance(tensor, torch.nn.Parameter)


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
    """Return a tensor over the memory that arrived with it."""
    torch: Any = importlib.import_module("torch")  # the user's torch
    if memoryview(data).readonly:
        data = bytearray(data)
    flat = torch.frombuffer(data, dtype=torch.uint8)
    tensor = flat.view(getattr(torch, dtype)).reshape(shape).requires_grad_(requires_grad)
    vars(tensor).update(attributes)
    return tensor
