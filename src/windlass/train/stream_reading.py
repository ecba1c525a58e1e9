"""Steps of an iterable dataset: its samples come in its own order, and only one after another.

Every rank, and every worker process of a rank, iterates over the whole dataset and keeps its share of each
global batch; a sample's number is its place in the epoch. A resumed run skips what was read before, epoch by
epoch unless the dataset tells its length. Called by loader.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from windlass.errors import SpecError
from windlass.train.sample_reading import Collate, SampleError, collate
from windlass.train.side_random import seed_all
from windlass.train.step_plan import Cutting, StepPlan

ReadBatch = tuple[StepPlan, int, Any]  # a step, the number of a micro-batch in it, its data


class StreamReader:
    """Reads the steps of one iterable dataset."""

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
        """This rank's micro-batches, or of them what one of several workers reads: every n-th."""
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
                    f"epoch {epoch} of {type(self.dataset).__name__} has no step",
                    hint="it must have a sample, with drop_last a whole batch, each time it is iterated "
                    "over; an iterator can be used up only once",
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
        """Global batches (their first place, their samples, whether it is the last), one read ahead.

        Of the first `skip` batches only the count is kept.
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
                hint="iterate over the dataset in one process to see it fail there",
            ) from error


def count_samples(dataset: Any) -> int | None:
    """How many samples a dataset says it has; None if it does not."""
    try:
        return len(dataset)
    except TypeError:
        return None
