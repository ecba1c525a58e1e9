"""Sharded loader: steps of global batches that are the same at any world size.

    loader = Loader(dataset, batch=256, micro_batch=8)
    for step in loader.steps(start=resumed_at, stop=1000): ...

The samples of a step are a pure function of (seed, step). The state of a loader is the number of the next
step, and a checkpoint saves only that. Used by the trainer. This module is independent of model and device.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import IterableDataset, TensorDataset, default_collate

from windlass.errors import SpecError
from windlass.train.data import prefetch
from windlass.train.data.sample_reading import (
    Collate,
    ReadBatch,
    SampleReader,
    SideRandom,
    StreamReader,
    count_samples,
)
from windlass.train.data.step_plan import Cutting, StepPlan, plan_steps

_AHEAD = 2  # steps that a thread reads ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Micro-batch of this rank. A batch with weight 0 is a filler, and its loss must not count."""

    data: Any  # collated
    weight: int  # number of samples in it that count
    sample_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataStep:
    """The data of one optimizer step, as this rank sees it."""

    index: int  # counts from 0 over all epochs
    epoch: int
    is_last_of_epoch: bool
    micro_batches: tuple[Batch, ...]  # the same number on every rank
    global_samples: int  # number of samples in the step, over all ranks

    @property
    def sample_ids(self) -> tuple[int, ...]:
        """The samples of this rank."""
        return tuple(i for batch in self.micro_batches for i in batch.sample_ids)


class Loader:
    """Steps over a map dataset (`len` and `[]`), or over an iterable one in its own order.

    batch: samples of an optimizer step over all ranks, whatever their number.
    micro_batch: samples that one rank processes together (default: all of its samples in a step).
    drop_last: skip an incomplete batch at the end of an epoch. Otherwise that step is smaller.
    rank, world_size: position among the ranks (default: from this process's context).
    num_workers: processes that read the data, or 0 to read in this process. In both cases the dataset may
        draw random numbers, which are seeded for each sample and separate from the model's.
    prefetch: steps that a thread of this process reads ahead if there are no workers. The default is 2 for a
        dataset known to be safe (TensorDataset, or `is_read_in_background = True` on it), else 0. A dataset
        read by a thread must not draw random numbers.
    worker_options: options for the workers' DataLoader from torch, such as worker_init_fn.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batch: int,
        micro_batch: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        num_workers: int = 0,
        collate: Collate | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        worker_options: Mapping[str, Any] | None = None,
    ) -> None:
        rank, world_size = _find_place(rank, world_size)
        _check_numbers(batch=batch, micro_batch=micro_batch, num_workers=num_workers)
        self.dataset = dataset
        self.cutting = Cutting(
            batch=batch,
            micro_batch=micro_batch,
            rank=rank,
            world_size=world_size,
            drop_last=drop_last,
        )
        self.seed, self.shuffle, self.num_workers = seed, shuffle, num_workers
        self.num_samples = count_samples(dataset)  # None if the dataset has no length
        self.is_stream = isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")
        self._collate = collate
        self._worker_options = dict(worker_options or {})
        self._pins = pin_memory and torch.cuda.is_available()
        # Safe in a thread: neither the dataset nor its collation draws random numbers.
        is_safe = (type(dataset) is TensorDataset and collate is None) or getattr(
            dataset, "is_read_in_background", False
        )
        self._depth = (
            0 if num_workers else (_AHEAD if is_safe else 0) if prefetch is None else prefetch
        )
        self._check_size()

    @property
    def batch(self) -> int:
        """Samples of an optimizer step over all ranks."""
        return self.cutting.batch

    @property
    def has_length(self) -> bool:
        """True if the number of steps per epoch is known in advance."""
        return self.num_samples is not None

    @property
    def steps_per_epoch(self) -> int:
        """Number of optimizer steps per epoch."""
        if self.num_samples is None:
            raise SpecError(
                f"{type(self.dataset).__name__} has no length, so the number of "
                "steps per epoch is unknown",
                hint="set the length of the training in steps, or add __len__ to the dataset",
            )
        return self.cutting.count_steps(self.num_samples)

    def steps(self, *, start: int = 0, stop: int | None = None) -> Generator[DataStep, None, None]:
        """Yield the steps from `start` up to, not including, `stop`. Without `stop`, this never ends."""
        if start < 0:
            raise SpecError(f"cannot start at step {start}", hint="the first step is 0")
        steps = _join_steps(self._read(start, stop), pins=self._pins and not self.num_workers)
        if self._depth:
            return prefetch.read_ahead(steps, depth=self._depth)
        return (
            steps if self.num_workers else _isolate_random_state(steps, keeps_state=self.is_stream)
        )

    def _read(self, start: int, stop: int | None) -> Iterator[ReadBatch]:
        seed = None if self._depth else self.seed
        if self.is_stream:
            stream = StreamReader(
                self.dataset, self.cutting, collate=self._collate or default_collate, seed=seed
            )
            if self.num_workers:
                return prefetch.read_stream_in_processes(
                    stream,
                    start=start,
                    stop=stop,
                    num_workers=self.num_workers,
                    pin_memory=self._pins,
                    options=self._worker_options,
                )
            return stream.read(start=start, stop=stop)
        reader = SampleReader(self.dataset, collate=self._collate, seed=seed)
        plans = plan_steps(
            len(self.dataset),
            self.cutting,
            seed=self.seed,
            shuffle=self.shuffle,
            start=start,
            stop=stop,
        )
        if self.num_workers:
            return prefetch.read_map_in_processes(
                reader,
                plans,
                num_workers=self.num_workers,
                pin_memory=self._pins,
                options=self._worker_options,
            )
        return _read_here(reader, plans)

    def _check_size(self) -> None:
        name = type(self.dataset).__name__
        if not self.is_stream and self.num_samples is None:
            raise SpecError(
                f"{name} has no length",
                hint="add __len__ for a map dataset, or remove __getitem__ if it is only iterated over",
            )
        if self.num_samples == 0:
            raise SpecError(f"{name} has no samples", hint="check its path and its filters")
        if self.num_samples is not None and not self.steps_per_epoch:
            raise SpecError(
                f"a batch of {self.batch} exceeds the {self.num_samples} samples of {name}, "
                "so there would be no steps",
                hint=f"use a batch of at most {self.num_samples}, or drop_last=False",
            )


class EvalLoader:
    """Loader that reads every sample of a dataset once over all ranks, in the dataset's order.

    Each `iter` is one pass. Every rank gets the same number of batches, and fillers have weight 0. The sum of
    loss x weight over all ranks, divided by the sum of weights, is therefore the mean over the dataset.
    """

    def __init__(self, dataset: Any, *, micro_batch: int, **options: Any) -> None:
        rank, world_size = _find_place(options.pop("rank", None), options.pop("world_size", None))
        self.loader = Loader(
            dataset,
            batch=micro_batch * world_size,
            rank=rank,
            world_size=world_size,
            shuffle=False,
            drop_last=False,
            **options,
        )

    @property
    def num_batches(self) -> int:
        """Number of batches in one pass, the same on every rank."""
        return self.loader.steps_per_epoch

    def __iter__(self) -> Iterator[Batch]:
        stop = self.num_batches if self.loader.has_length else None
        with closing(self.loader.steps(stop=stop)) as steps:
            for step in steps:
                yield from step.micro_batches
                if step.is_last_of_epoch:
                    break


def _read_here(reader: SampleReader, plans: Iterator[StepPlan]) -> Iterator[ReadBatch]:
    for plan in plans:
        for place, batch in enumerate(plan.batches):
            yield plan, place, reader.read(batch, plan.epoch)


def _isolate_random_state(
    steps: Iterator[DataStep], *, keeps_state: bool
) -> Generator[DataStep, None, None]:
    """Yield the steps, keeping the data pipeline's random state separate from the training loop's."""
    side = SideRandom(keeps_state=keeps_state)
    while True:
        with side:
            step = next(steps, None)
        if step is None:
            return
        yield step


def _join_steps(batches: Iterator[ReadBatch], *, pins: bool) -> Generator[DataStep, None, None]:
    read: list[Batch] = []
    for plan, place, data in batches:
        batch = plan.batches[place]
        read.append(
            Batch(
                data=_pin(data) if pins else data, weight=batch.weight, sample_ids=batch.sample_ids
            )
        )
        if len(read) == len(plan.batches):
            yield DataStep(
                index=plan.index,
                epoch=plan.epoch,
                is_last_of_epoch=plan.is_last_of_epoch,
                micro_batches=tuple(read),
                global_samples=plan.global_samples,
            )
            read = []


def _pin(data: Any) -> Any:
    """Return the same data in pinned memory, from which copies to a GPU are asynchronous."""
    if hasattr(data, "pin_memory"):
        return data.pin_memory()
    if isinstance(data, dict):
        return {key: _pin(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)) and not hasattr(data, "_fields"):
        return type(data)(_pin(value) for value in data)
    return data


def _find_place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if rank is None or world_size is None:
        from windlass.train.parallel.context import get_context  # joins the process group

        context = get_context()
        rank = context.rank if rank is None else rank
        world_size = context.world_size if world_size is None else world_size
    if not 0 <= rank < world_size:
        raise SpecError(
            f"rank {rank} is out of range for world_size={world_size}",
            hint="ranks count from 0 to world_size - 1",
        )
    return rank, world_size


def _check_numbers(*, batch: int, micro_batch: int | None, num_workers: int) -> None:
    if batch < 1 or (micro_batch is not None and micro_batch < 1) or num_workers < 0:
        raise SpecError(
            f"batch={batch}, micro_batch={micro_batch} or num_workers={num_workers} is too small",
            hint="use batches of at least one sample, and num_workers=0 to read in this process",
        )
