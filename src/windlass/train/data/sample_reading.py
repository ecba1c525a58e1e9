"""Readers that turn samples of a dataset into the data of a micro-batch.

A `SampleReader` reads a map dataset. It runs in the rank, in its prefetch thread, or in a worker of torch's
DataLoader, and is independent of ranks and steps. A `StreamReader` reads an iterable dataset, which has its
own order and no random access. Every rank, and every worker process of a rank, iterates over the whole
dataset and keeps its share of each global batch. A resumed run skips the samples that were read before. If
the dataset has no length, it skips epoch by epoch.

A dataset may draw from Python's, numpy's and torch's global generators. The readers seed them for a sample
and restore the training's state afterwards. A sample is then a function of (seed, epoch, sample). The model's
random numbers do not depend on how the data was read. Called by loader.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import torch
from torch.utils.data import TensorDataset, default_collate

from windlass.errors import JobError, SpecError
from windlass.train.data.step_plan import BatchPlan, Cutting, StepPlan

Collate = Callable[[list[Any]], Any]
_COLLATING = 1  # distinguishes this seed from that of a sample
ReadBatch = tuple[StepPlan, int, Any]  # a step, the number of a micro-batch in it, its data


def seed_all(*parts: int) -> None:
    """Seed the global generators of this process, CPU only, from these numbers."""
    digest = hashlib.blake2b(":".join(map(str, parts)).encode(), digest_size=8).digest()
    seed = int.from_bytes(digest, "little") >> 1
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed & 0xFFFF_FFFF)


class SideRandom:
    """Context that gives the global generators the data's states, and restores the training's on exit.

    With `keeps_state`, the next use continues from the data's last states. Data that is seeded for each
    sample does not need that.
    """

    def __init__(self, *, keeps_state: bool) -> None:
        self._keeps_state = keeps_state
        self._data: tuple[Any, ...] | None = None
        self._training: tuple[Any, ...] = ()

    def __enter__(self) -> None:
        self._training = get_states()
        if self._data is not None:
            set_states(self._data)

    def __exit__(self, *_: object) -> None:
        if self._keeps_state:
            self._data = get_states()
        set_states(self._training)


def get_states() -> tuple[Any, ...]:
    """Return the states of this process's global generators, CPU only."""
    numpy = sys.modules.get("numpy")
    return (
        random.getstate(),
        torch.default_generator.get_state(),
        None if numpy is None else numpy.random.get_state(),
    )


def are_same(before: tuple[Any, ...], after: tuple[Any, ...]) -> bool:
    """Return whether no number was drawn in between."""
    return (
        before[0] == after[0]
        and torch.equal(before[1], after[1])
        and (before[2] is None) == (after[2] is None)
        and (before[2] is None or _is_same_numpy(before[2], after[2]))
    )


def _is_same_numpy(before: Any, after: Any) -> bool:
    return before[2:] == after[2:] and bool((before[1] == after[1]).all())


def set_states(states: tuple[Any, ...]) -> None:
    """Restore the states of this process's global generators."""
    of_python, of_torch, of_numpy = states
    random.setstate(of_python)
    torch.default_generator.set_state(of_torch)
    if of_numpy is not None:
        sys.modules["numpy"].random.set_state(of_numpy)


class SampleError(JobError):
    """A dataset raised while a sample was read, or its samples could not be put into one batch."""


class SampleReader:
    """Reads micro-batches of one dataset."""

    def __init__(self, dataset: Any, *, collate: Collate | None, seed: int | None) -> None:
        self.dataset = dataset
        self.collate = collate or default_collate
        self.seed = seed  # None: the dataset's random numbers are not seeded
        self._draws = False  # True once the dataset drew random numbers
        self._tensors = (
            dataset.tensors if type(dataset) is TensorDataset and collate is None else None
        )

    def read(self, batch: BatchPlan, epoch: int) -> Any:
        """Return the collated data of a micro-batch."""
        if self._tensors is not None:  # the same as the default collation, in one operation
            index = torch.tensor(batch.reads)
            return [tensor[index] for tensor in self._tensors]
        samples = self._read_samples(batch.reads, epoch)
        return collate(self.collate, samples, batch, epoch, seed=self.seed)

    def _read_samples(self, sample_ids: Sequence[int], epoch: int) -> list[Any]:
        """Return the samples. Data that draws random numbers is seeded, after a first unseeded read."""
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
            if self._draws:  # each needs its own seed
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
    """Return the samples as one batch. An error names the samples that failed.

    The numbers that a user's function draws, as in mixup, depend on the seed, the epoch and the first sample.
    """
    is_seeded = seed is not None and function is not default_collate
    states = get_states() if is_seeded else ()
    try:
        if is_seeded:
            seed_all(seed or 0, epoch, batch.reads[0], _COLLATING)
        return function(samples)
    except Exception as error:
        raise SampleError(
            f"samples {list(batch.reads)} of epoch {epoch} could not be collated into a batch: "
            f"{type(error).__name__}: {error}",
            hint="return samples of the same type and shape, or pass the loader a `collate` for them",
        ) from error
    finally:
        if is_seeded:
            set_states(states)


def _name(dataset: Any) -> str:
    return type(dataset).__name__


class StreamReader:
    """Reader for the steps of one iterable dataset."""

    def __init__(
        self, dataset: Any, cutting: Cutting, *, collate: Collate, seed: int | None
    ) -> None:
        self.dataset = dataset
        self.cutting = cutting
        self.collate = collate
        self.seed = seed

    def read(
        self, *, start: int, stop: int | None, worker: int = 0, num_workers: int = 1
    ) -> Iterator[ReadBatch]:
        """Yield this rank's micro-batches. With several workers, each yields every n-th of them."""
        number = 0
        for plan, samples in self._read_steps(start, stop):
            for place, (batch, places) in enumerate(
                zip(plan.batches, self.cutting.cut(plan.global_samples), strict=True)
            ):
                if number % num_workers == worker:
                    own = samples[places.start : places.stop] or samples[:1]
                    yield plan, place, collate(self.collate, own, batch, plan.epoch, seed=self.seed)
                number += 1

    def _read_steps(self, start: int, stop: int | None) -> Iterator[tuple[StepPlan, list[Any]]]:
        num_samples = count_samples(self.dataset)
        per_epoch = None if num_samples is None else self.cutting.count_steps(num_samples)
        first_epoch = start // per_epoch if per_epoch else 0
        index = first_epoch * (per_epoch or 0)
        for epoch in count(first_epoch):
            if stop is not None and index >= stop:
                return
            epoch_start = index
            for first, samples, is_last in self._read_epoch(epoch, skip=max(0, start - index)):
                index = epoch_start + first // self.cutting.batch
                if stop is not None and index >= stop:
                    return
                sample_ids = range(first, first + len(samples))
                if index >= start and samples:
                    yield self._plan(index, epoch, is_last, sample_ids), samples
                index += 1
            if index == epoch_start:
                raise SpecError(
                    f"epoch {epoch} of {type(self.dataset).__name__} has no steps",
                    hint="every iteration must yield a sample, or a whole batch with drop_last; "
                    "an iterator works only once",
                )

    def _plan(self, index: int, epoch: int, is_last: bool, sample_ids: range) -> StepPlan:
        return StepPlan(
            index=index,
            epoch=epoch,
            is_last_of_epoch=is_last,
            global_samples=len(sample_ids),
            batches=self.cutting.plan_batches(sample_ids),
        )

    def _read_epoch(self, epoch: int, *, skip: int) -> Iterator[tuple[int, list[Any], bool]]:
        """Yield global batches as (first position, samples, is_last), reading one ahead.

        The first `skip` batches are counted, but not kept.
        """
        if self.seed is not None:
            seed_all(self.seed, epoch)
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)
        size, place, waiting = self.cutting.batch, 0, None
        samples: list[Any] = []
        for sample in self._iterate(epoch):
            samples.append(sample)
            place += 1
            if len(samples) == size:
                if waiting is not None:
                    yield (*waiting, False)
                waiting = (place - size, samples if place > skip * size else [])
                samples = []
        if waiting is not None:
            yield (*waiting, self.cutting.drop_last or not samples)
        if samples and not self.cutting.drop_last:
            yield place - len(samples), samples, True

    def _iterate(self, epoch: int) -> Iterator[Any]:
        place = 0
        try:
            for sample in self.dataset:
                yield sample
                place += 1
        except Exception as error:
            raise SampleError(
                f"sample {place} of {type(self.dataset).__name__} could not be read in epoch {epoch}: "
                f"{type(error).__name__}: {error}",
                hint="iterate over the dataset in one process to reproduce the error",
            ) from error


def count_samples(dataset: Any) -> int | None:
    """Return a dataset's length, or None if it has none."""
    try:
        return len(dataset)
    except TypeError:
        return None
