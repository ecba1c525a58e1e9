"""Tensors that are made of other tensors, such as the quantised moments of an 8-bit optimizer.

A checkpoint keeps their parts, each as the tensor that it is, so that a resumed training has the very same
state: saved as what they stand for, they would come back as large tensors, rounded otherwise. Called by
checkpoint_state and checkpoint_staging; sharded tensors (DTensor) are not of these, torch knows them itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from windlass.train.checkpoint_json import record


@record
@dataclass(frozen=True, slots=True, kw_only=True)
class WrappedAt:
    """Stands in an entry for a tensor of this class, whose parts are under these names."""

    kind: type
    context: Any  # what the class wants to know beside its parts
    size: tuple[int, ...]
    stride: tuple[int, ...]
    parts: dict[str, Any]


def is_wrapped(value: Any) -> bool:
    """Whether a value is a tensor that is made of others, and says of which."""
    return (
        isinstance(value, torch.Tensor)
        and not isinstance(value, DTensor)
        and hasattr(type(value), "__tensor_flatten__")
    )


def take_apart(value: Any, replace: Callable[[str, Any], Any]) -> WrappedAt:
    """What is left of a tensor when each part is replaced by what `replace(its name, part)` returns."""
    names, context = value.__tensor_flatten__()
    return WrappedAt(
        kind=type(value),
        context=context,
        size=tuple(value.size()),
        stride=tuple(value.stride()),
        parts={name: replace(name, getattr(value, name)) for name in names},
    )


def put_together(at: WrappedAt, find: Callable[[Any], Any]) -> torch.Tensor:
    """The tensor again, of what `find` returns for each part."""
    parts = {name: find(part) for name, part in at.parts.items()}
    kind: Any = at.kind
    made: torch.Tensor = kind.__tensor_unflatten__(parts, at.context, at.size, at.stride)
    return made


def list_parts(value: Any) -> Iterator[torch.Tensor]:
    """The tensors that hold a tensor's numbers: itself, or its parts."""
    if not is_wrapped(value):
        yield value
        return
    names, _ = value.__tensor_flatten__()
    for name in names:
        yield from list_parts(getattr(value, name))
