"""Samples of a map dataset, read and collated into the data of a micro-batch.

A `SampleReader` runs in the rank itself, in its prefetch thread, or in a worker of torch's DataLoader. It
knows nothing of ranks or steps. An error of the dataset is told with the sample's number. Called by loader.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import TensorDataset, default_collate

from windlass.errors import JobError
from windlass.train.side_random import are_same, get_states, seed_all, set_states
from windlass.train.step_plan import BatchPlan

Collate = Callable[[list[Any]], Any]
_COLLATING = 1  # beside the numbers that seed a sample


class SampleError(JobError):
    """A dataset raised while a sample was read, or its samples could not be put into one batch."""


class SampleReader:
    """Reads micro-batches of one dataset."""

    def __init__(self, dataset: Any, *, collate: Collate | None, seed: int | None) -> None:
        self.dataset = dataset
        self.collate = collate or default_collate
        self.seed = seed  # None: random numbers of the dataset are nobody's business
        self._draws = False  # whether it was seen to draw random numbers
        self._tensors = (
            dataset.tensors if type(dataset) is TensorDataset and collate is None else None
        )

    def read(self, batch: BatchPlan, epoch: int) -> Any:
        """The collated data of a micro-batch."""
        if self._tensors is not None:  # what the default collation gives, at once
            index = torch.tensor(batch.reads)
            return [tensor[index] for tensor in self._tensors]
        samples = self._read_samples(batch.reads, epoch)
        return collate(self.collate, samples, batch, epoch, seed=self.seed)

    def _read_samples(self, sample_ids: Sequence[int], epoch: int) -> list[Any]:
        """The samples; seeding is paid for only by a dataset that draws, whose first batch is read twice."""
        if self.seed is None or self._draws:
            return self._read_each(sample_ids, epoch)
        before = get_states()
        samples = self._read_each(sample_ids, epoch)
        if are_same(before, get_states()):
            return samples
        self._draws = True
        return self._read_each(sample_ids, epoch)

    def _read_each(self, sample_ids: Sequence[int], epoch: int) -> list[Any]:
        if hasattr(self.dataset, "__getitems__"):
            if self._draws:  # each with a seed of its own, however many are read together
                return [self._read_one([i], "__getitems__", epoch)[0] for i in sample_ids]
            samples: list[Any] = self._read_one(list(sample_ids), "__getitems__", epoch)
            return samples
        return [self._read_one(sample_id, "__getitem__", epoch) for sample_id in sample_ids]

    def _read_one(self, which: int | list[int], method: str, epoch: int) -> Any:
        if self._draws:
            seed_all(self.seed or 0, epoch, which if isinstance(which, int) else which[0])
        try:
            return getattr(self.dataset, method)(which)
        except Exception as error:
            raise SampleError(
                f"sample {which} of {_name(self.dataset)} could not be read in epoch {epoch}: "
                f"{type(error).__name__}: {error}",
                hint=f"try dataset[{which if isinstance(which, int) else which[0]}] in one process",
            ) from error


def collate(
    function: Collate, samples: list[Any], batch: BatchPlan, epoch: int, *, seed: int | None
) -> Any:
    """The samples as one batch; says which ones they were if that fails.

    What a user's function draws, as mixup does, is a function of the seed, the epoch and the first sample.
    """
    is_seeded = seed is not None and function is not default_collate
    states = get_states() if is_seeded else ()
    try:
        if is_seeded:
            seed_all(seed or 0, epoch, batch.reads[0], _COLLATING)
        return function(samples)
    except Exception as error:
        raise SampleError(
            f"samples {list(batch.reads)} of epoch {epoch} could not be put into one batch: "
            f"{type(error).__name__}: {error}",
            hint="samples must be alike, or give the loader a `collate` that makes them so",
        ) from error
    finally:
        if is_seeded:
            set_states(states)


def _name(dataset: Any) -> str:
    return type(dataset).__name__
