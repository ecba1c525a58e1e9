"""The order of the samples: a permutation that is a pure function of (seed, epoch, index).

Pure. A Feistel network over the bits of an index, walked until it lands below `num_samples`: nothing is kept
per sample, any index is reached at once, and every process computes the same order without asking another.
Checkpoints depend on it: a change of the values is a change of the format. Used by loader.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, overload

import torch

from windlass.errors import SpecError

_ROUNDS = 8  # even, so that both halves are back at their own widths
_MASK = 0xFFFF_FFFF
_BLOCK = 4096  # indices that are computed at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Order(Sequence[int]):
    """The sample at each place of an epoch; `order[i]` is a sample's number, `order[a:b]` a list of them."""

    num_samples: int
    keys: tuple[int, ...]  # of the rounds; none: samples come in their own order

    def __len__(self) -> int:
        return self.num_samples

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return self._slice(range(*index.indices(self.num_samples)))
        if not -self.num_samples <= index < self.num_samples:
            raise IndexError(f"place {index} of an order of {self.num_samples} samples")
        place = index % self.num_samples
        return self._slice(range(place, place + 1))[0]

    def _slice(self, places: range) -> list[int]:
        if not self.keys:
            return list(places)
        samples: list[int] = []
        while places:  # block by block, each computed at once
            block, first = divmod(places[0], _BLOCK)
            permuted = _permute_block(self.num_samples, self.keys, block)
            taken = (
                permuted[first : first + len(places)]
                if places.step == 1
                else [permuted[places[0] % _BLOCK]]
            )
            samples += taken
            places = places[len(taken) :]
        return samples


def make_order(num_samples: int, *, seed: int, epoch: int, shuffle: bool = True) -> Order:
    """The order of one epoch; without `shuffle` the samples' own."""
    if not 0 <= num_samples < 2**62:
        raise SpecError(f"an order of {num_samples} samples", hint="it is for 0 to 2**62 - 1")
    return Order(num_samples=num_samples, keys=_make_keys(seed, epoch) if shuffle else ())


def _make_keys(seed: int, epoch: int) -> tuple[int, ...]:
    digest = hashlib.blake2b(f"{seed}:{epoch}".encode(), digest_size=4 * _ROUNDS).digest()
    return tuple(
        int.from_bytes(digest[start : start + 4], "little") for start in range(0, len(digest), 4)
    )


@lru_cache(maxsize=16)
def _permute_block(num_samples: int, keys: tuple[int, ...], block: int) -> list[int]:
    first = block * _BLOCK
    places = torch.arange(first, min(first + _BLOCK, num_samples), dtype=torch.int64)
    num_bits = max(1, (num_samples - 1).bit_length())
    values = _mix(places, keys, num_bits)
    while bool((is_outside := values >= num_samples).any()):
        values[is_outside] = _mix(values[is_outside], keys, num_bits)
    return [int(value) for value in values.tolist()]


def _mix(values: Any, keys: tuple[int, ...], num_bits: int) -> Any:
    """A permutation of [0, 2**num_bits). In each round the halves change places, and one is XORed."""
    left_bits, right_bits = num_bits // 2, num_bits - num_bits // 2
    left, right = values >> right_bits, values & ((1 << right_bits) - 1)
    for key in keys:
        left, right = right, left ^ (_hash(right, key) & ((1 << left_bits) - 1))
        left_bits, right_bits = right_bits, left_bits
    return (left << right_bits) | right


def _hash(values: Any, key: int) -> Any:
    """32 bits out of 32 (murmur3's finish); products wrap, and only their low 32 bits are kept."""
    mixed = (values + key) & _MASK
    mixed = ((mixed ^ (mixed >> 16)) * 0x85EBCA6B) & _MASK
    mixed = ((mixed ^ (mixed >> 13)) * 0xC2B2AE35) & _MASK
    return mixed ^ (mixed >> 16)
