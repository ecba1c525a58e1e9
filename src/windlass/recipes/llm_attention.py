"""Causal attention, within documents where several are packed into one row.

Documents are told by offsets: where each begins in the rows laid end to end, and the end of the last, as
often as there is room. Without offsets every row is one document. Which kernel computes it is decided here
and nowhere else: attention of varying lengths where torch has it for this device, else a mask.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

# cuDNN's takes two thirds of flash's time on an H200 (benchmarks.md); torch itself tries flash first
_FASTEST_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
_FEWEST_OFFSETS = 64  # a fixed shape, so that compiled code is compiled once


def pad_offsets(starts: Tensor) -> Tensor:
    """Offsets in as many places as the next power of two, filled up with documents of no tokens."""
    size = max(_FEWEST_OFFSETS, 1 << (len(starts) - 1).bit_length())
    return functional.pad(starts, (0, size - len(starts)), value=int(starts[-1]))


def make_mask(offsets: Tensor, rows: int, length: int) -> Tensor:
    """Which token sees which, as (rows, 1, length, length): those before it in its own document."""
    places = torch.arange(rows * length, device=offsets.device)
    documents = torch.bucketize(places, offsets[1:], right=True).view(rows, length)
    order = torch.arange(length, device=offsets.device)
    is_same = documents[:, :, None] == documents[:, None, :]
    return (is_same & (order[:, None] >= order[None, :]))[:, None]


def has_varlen(device: torch.device) -> bool:
    """Whether packed rows are computed without a mask on this device."""
    return device.type == "cuda" and _varlen() is not None


def attend(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, offsets: Tensor | None
) -> Tensor:
    """Attention over (rows, length, heads, head_size); key and value may have fewer heads.

    offsets: of the documents, where `has_varlen`; mask: elsewhere; neither: one document a row.
    """
    if offsets is not None:
        return _attend_varlen(query, key, value, offsets)
    is_grouped = key.shape[2] != query.shape[2]
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    if mask is not None or not query.is_cuda:
        out = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=is_grouped
        )
    else:
        with sdpa_kernel(_FASTEST_FIRST, set_priority=True):
            out = functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=is_grouped
            )
    return out.transpose(1, 2)


def _attend_varlen(query: Tensor, key: Tensor, value: Tensor, offsets: Tensor) -> Tensor:
    varlen = _varlen()
    if varlen is None:
        raise RuntimeError("this torch has no attention of varying lengths; pass a mask")
    rows, length, _, _ = query.shape
    flat = [x.flatten(0, 1) for x in (query, key, value)]
    out: Tensor = varlen(*flat, offsets, length)
    return out.unflatten(0, (rows, length))


@functools.cache
def _varlen() -> Callable[..., Any] | None:
    """Torch's attention of varying lengths, causal, for grouped heads; it came with 2.10."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    known = inspect.signature(varlen_attn).parameters
    causal: dict[str, Any] = (
        {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
    )
    groups: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in known else {}

    def call(query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, length: int) -> Any:
        # before it had the flag, it took fewer heads of key and value unasked
        options = causal if key.shape[1] == query.shape[1] else causal | groups
        return varlen_attn(query, key, value, offsets, offsets, length, length, **options)

    return call
