"""Which samples a rank reads for a step: a global batch, cut over ranks and then into micro-batches.

Pure. The global batch of a step does not depend on the world size, only its cutting does. Every rank gets the
same number of micro-batches, so that collectives match; where samples do not suffice, one that counts nothing
fills the place. Called by loader and stream_reading; no dataset comes in here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from windlass.train.order import make_order


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
    """What one rank reads for one optimizer step."""

    index: int
    epoch: int
    is_last_of_epoch: bool
    global_samples: int
    batches: tuple[BatchPlan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutting:
    """How global batches are made and cut, as one rank sees it."""

    batch: int  # samples of a step, over all ranks
    micro_batch: int | None  # of one rank; None: all it has in a step
    rank: int
    world_size: int
    drop_last: bool

    def count_steps(self, num_samples: int) -> int:
        """Steps of an epoch of that many samples."""
        return num_samples // self.batch if self.drop_last else -(-num_samples // self.batch)

    def cut(self, num_samples: int) -> list[range]:
        """This rank's micro-batches, as places in a step of that many samples; empty ranges are fillers."""
        first = num_samples * self.rank // self.world_size
        last = num_samples * (self.rank + 1) // self.world_size
        largest_share = -(-num_samples // self.world_size)
        pieces = -(-largest_share // (self.micro_batch or largest_share)) if largest_share else 0
        # evenly: a remainder of one sample would have no variance for BatchNorm
        share = last - first
        return [
            range(first + share * piece // pieces, first + share * (piece + 1) // pieces)
            for piece in range(pieces)
        ]

    def plan_batches(self, sample_ids: Sequence[int]) -> tuple[BatchPlan, ...]:
        """This rank's micro-batches of a step with these samples; fillers read the step's first."""
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
    """The steps from `start` on, over epochs, of a dataset of which any sample can be read at any time."""
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
