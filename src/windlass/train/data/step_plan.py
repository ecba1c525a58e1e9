"""Plan of the samples that a rank reads for a step: a global batch, split over ranks and micro-batches.

This module is pure and reads no dataset. The order of the samples is a permutation that depends only on
(seed, epoch, index). It is a Feistel network over the bits of an index, repeated until the result is below
`num_samples`. No state is kept per sample, and every process computes the same order on its own. Checkpoints
depend on the values, so changing them changes the format.

The global batch of a step does not depend on the world size. Only the split does. Every rank gets the same
number of micro-batches, so that collectives match. If there are too few samples, fillers with weight 0
complete the number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any, overload

import torch

from windlass.errors import SpecError

_ROUNDS = 8  # even, so that both halves are back at their original widths
_MASK = 0xFFFF_FFFF
_BLOCK = 4096  # indices computed together


@dataclass(frozen=True, slots=True, kw_only=True)
class Order(Sequence[int]):
    """Samples of an epoch by position. `order[i]` is a sample's number, and `order[a:b]` a list of them."""

    num_samples: int
    keys: tuple[int, ...]  # one per round, or empty for unshuffled samples

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
            raise IndexError(f"position {index} of an order of {self.num_samples} samples")
        place = index % self.num_samples
        return self._slice(range(place, place + 1))[0]

    def _slice(self, places: range) -> list[int]:
        if not self.keys:
            return list(places)
        samples: list[int] = []
        while places:  # one block at a time
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
    """Return the order of one epoch. Without `shuffle`, it is the samples' own order."""
    if not 0 <= num_samples < 2**62:
        raise SpecError(f"cannot order {num_samples} samples", hint="use 0 to 2**62 - 1 samples")
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
    """Return a permutation of [0, 2**num_bits). Each round swaps the halves and XORs one."""
    left_bits, right_bits = num_bits // 2, num_bits - num_bits // 2
    left, right = values >> right_bits, values & ((1 << right_bits) - 1)
    for key in keys:
        left, right = right, left ^ (_hash(right, key) & ((1 << left_bits) - 1))
        left_bits, right_bits = right_bits, left_bits
    return (left << right_bits) | right


def _hash(values: Any, key: int) -> Any:
    """Return 32 bits from 32 (murmur3's finalizer). Products wrap, and only their low 32 bits are kept."""
    mixed = (values + key) & _MASK
    mixed = ((mixed ^ (mixed >> 16)) * 0x85EBCA6B) & _MASK
    mixed = ((mixed ^ (mixed >> 13)) * 0xC2B2AE35) & _MASK
    return mixed ^ (mixed >> 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """One micro-batch: the samples to read, and how many of them count (all, or none in a filler)."""

    reads: tuple[int, ...]
    weight: int

    @property
    def sample_ids(self) -> tuple[int, ...]:
        return self.reads if self.weight else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """Samples that one rank reads for one optimizer step."""

    index: int
    epoch: int
    is_last_of_epoch: bool
    global_samples: int
    batches: tuple[BatchPlan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutting:
    """Settings for making and splitting global batches, as one rank sees them."""

    batch: int  # samples of a step, over all ranks
    micro_batch: int | None  # samples of one rank (default: all of its samples in a step)
    rank: int
    world_size: int
    drop_last: bool

    def count_steps(self, num_samples: int) -> int:
        """Return the number of steps in an epoch with that many samples."""
        return num_samples // self.batch if self.drop_last else -(-num_samples // self.batch)

    def cut(self, num_samples: int) -> list[range]:
        """Return this rank's micro-batches as ranges of positions in a step. Empty ranges are fillers."""
        first = num_samples * self.rank // self.world_size
        last = num_samples * (self.rank + 1) // self.world_size
        largest_share = -(-num_samples // self.world_size)
        pieces = -(-largest_share // (self.micro_batch or largest_share)) if largest_share else 0
        # Split evenly, because BatchNorm has no variance for a remainder of one sample.
        share = last - first
        return [
            range(first + share * piece // pieces, first + share * (piece + 1) // pieces)
            for piece in range(pieces)
        ]

    def plan_batches(self, sample_ids: Sequence[int]) -> tuple[BatchPlan, ...]:
        """Return this rank's micro-batches of a step. Fillers read the step's first sample."""
        return tuple(
            BatchPlan(
                reads=tuple(sample_ids[places.start : places.stop]) or (sample_ids[0],),
                weight=len(places),
            )
            for places in self.cut(len(sample_ids))
        )


def plan_steps(
    num_samples: int, cutting: Cutting, *, seed: int, shuffle: bool, start: int, stop: int | None
) -> Iterator[StepPlan]:
    """Yield the steps from `start` on, over all epochs, of a dataset with random access."""
    steps_per_epoch = cutting.count_steps(num_samples)
    for index in count(start) if stop is None else range(start, stop):
        epoch, place = divmod(index, steps_per_epoch)
        order = make_order(num_samples, seed=seed, epoch=epoch, shuffle=shuffle)
        sample_ids = order[place * cutting.batch : (place + 1) * cutting.batch]
        yield StepPlan(
            index=index,
            epoch=epoch,
            is_last_of_epoch=place == steps_per_epoch - 1,
            global_samples=len(sample_ids),
            batches=cutting.plan_batches(sample_ids),
        )
