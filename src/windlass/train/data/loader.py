"""The sharded loader: steps of global batches, the same ones at any world size.

    loader = Loader(dataset, batch=256, micro_batch=8)
    for step in loader.steps(start=resumed_at, stop=1000): ...

Which samples a step holds is a pure function of (seed, step): the state of a loader is the number of the next
step, and that is all a checkpoint keeps of it. Used by the trainer; no model, no device comes in here.
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

_AHEAD = 2  # steps that a thread keeps ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A micro-batch of this rank. One of weight 0 only fills a place: its loss must count nothing."""

    data: Any  # collated
    weight: int  # samples in it that count
    sample_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataStep:
    """The data of one optimizer step, as this rank sees it."""

    index: int  # from 0, over all epochs
    epoch: int
    is_last_of_epoch: bool
    micro_batches: tuple[Batch, ...]  # as many on every rank
    global_samples: int  # samples of the step, over all ranks

    @property
    def sample_ids(self) -> tuple[int, ...]:
        """Of this rank."""
        return tuple(i for batch in self.micro_batches for i in batch.sample_ids)


class Loader:
    """Steps over a map dataset (`len` and `[]`) or an iterable one, whose order is its own.

    batch: samples of an optimizer step over all ranks, whatever their number.
    micro_batch: samples that one rank takes at once; None: all it has in a step.
    drop_last: leave out what is less than a batch at the end of an epoch; otherwise that step is smaller.
    rank, world_size: of this process's context, unless given.
    num_workers: processes that read the data; 0: this one. The dataset may draw random numbers in either:
        they are seeded for each sample, and apart from those of the model.
    prefetch: steps that a thread of this process keeps ready when there are no workers. None: 2 for a dataset
        known to be safe for that (TensorDataset, or `is_read_in_background = True` on it), else 0. A dataset
        read by a thread must not draw random numbers.
    worker_options: for torch's DataLoader, whose processes the workers are: worker_init_fn and the like.
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
        self.num_samples = count_samples(dataset)  # None: it does not tell
        self.is_stream = isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")
        self._collate = collate
        self._worker_options = dict(worker_options or {})
        self._pins = pin_memory and torch.cuda.is_available()
        # one that draws no random numbers, nor does what makes batches of it
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
        """Whether the number of steps of an epoch is known before it is read."""
        return self.num_samples is not None

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch."""
        if self.num_samples is None:
            raise SpecError(
                f"{type(self.dataset).__name__} does not tell how many samples it has, so nobody knows "
                "the steps of an epoch",
                hint="say how long to train in steps, or give the dataset a __len__",
            )
        return self.cutting.count_steps(self.num_samples)

    def steps(self, *, start: int = 0, stop: int | None = None) -> Generator[DataStep, None, None]:
        """The steps from number `start` to before `stop`, over epochs; without `stop`, endless."""
        if start < 0:
            raise SpecError(f"steps from {start}", hint="the first step is 0")
        steps = _join_steps(self._read(start, stop), pins=self._pins and not self.num_workers)
        if self._depth:
            return prefetch.read_ahead(steps, depth=self._depth)
        return steps if self.num_workers else _keep_apart(steps, keeps_state=self.is_stream)

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
                hint="a map dataset needs __len__; one that is only iterated over needs no __getitem__",
            )
        if self.num_samples == 0:
            raise SpecError(
                f"{name} has no samples", hint="look whether its path and its filters are right"
            )
        if self.num_samples is not None and not self.steps_per_epoch:
            raise SpecError(
                f"a batch of {self.batch} is more than the {self.num_samples} samples of {name}: "
                "no step would be left",
                hint=f"take a batch of at most {self.num_samples}, or drop_last=False",
            )


class EvalLoader:
    """Every sample of a dataset exactly once over all ranks, in its own order; one pass for each `iter`.

    Every rank gets as many batches; the weights are of real samples, so the sum of loss x weight over all
    ranks, divided by the sum of weights, is the mean over the dataset.
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
        """Of this rank, as of every other, in one pass."""
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


def _keep_apart(steps: Iterator[DataStep], *, keeps_state: bool) -> Generator[DataStep, None, None]:
    """The steps, read with random numbers of their own."""
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
    """The same data in memory from which a GPU copies without waiting."""
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
        raise SpecError(f"rank {rank} of {world_size}", hint="ranks count from 0 to world_size - 1")
    return rank, world_size


def _check_numbers(*, batch: int, micro_batch: int | None, num_workers: int) -> None:
    if batch < 1 or (micro_batch is not None and micro_batch < 1) or num_workers < 0:
        raise SpecError(
            f"batch={batch}, micro_batch={micro_batch}, num_workers={num_workers}",
            hint="batches have at least one sample; num_workers=0 reads in this process",
        )
