"""Iterators that run ahead of their consumer, in a thread or in worker processes of torch's DataLoader.

Nothing starts before the first item is requested, so that a process may still fork. Threads and workers end
when the iterator is closed or exhausted. Only loader calls this.
"""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from queue import SimpleQueue
from types import FrameType
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from windlass.train.data.sample_reading import ReadBatch, SampleError, SampleReader, StreamReader
from windlass.train.data.step_plan import StepPlan

T = TypeVar("T")

_JOIN_S = 5.0  # limit for a thread that is still reading a sample


def read_ahead(items: Iterator[T], *, depth: int) -> Generator[T, None, None]:
    """Yield the items. A separate thread makes up to `depth` of them ahead of time."""
    ready: SimpleQueue[tuple[str, Any]] = SimpleQueue()
    free = threading.Semaphore(depth)
    is_closed = threading.Event()

    def work() -> None:
        try:
            while free.acquire() and not is_closed.is_set():
                ready.put(("item", next(items)))
        except StopIteration:
            ready.put(("end", None))
        except BaseException as error:  # noqa: BLE001 (raised again where the items are read)
            ready.put(("error", error))

    thread = threading.Thread(target=work, name="windlass-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            kind, value = ready.get()
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield value
            free.release()
    finally:
        is_closed.set()
        free.release()
        if thread is not threading.current_thread():
            thread.join(_JOIN_S)


class _Failed:
    """Sample error from a worker process, which torch would otherwise wrap."""

    def __init__(self, error: SampleError) -> None:
        self.message, self.hint = error.message, error.hint


class _MapWorker:
    """Dataset of a worker process that reads a micro-batch of a step by its number."""

    def __init__(self, reader: SampleReader) -> None:
        self.reader = reader

    def __getitem__(self, wanted: tuple[StepPlan, int]) -> ReadBatch | _Failed:
        plan, place = wanted
        try:
            return plan, place, self.reader.read(plan.batches[place], plan.epoch)
        except SampleError as error:
            return _Failed(error)


class _StreamWorker(IterableDataset):
    """Dataset for a worker process. Iterates over everything, but yields only every n-th micro-batch."""

    def __init__(self, reader: StreamReader, start: int, stop: int | None) -> None:
        self.reader, self.start, self.stop = reader, start, stop

    def __iter__(self) -> Iterator[ReadBatch | _Failed]:
        info = get_worker_info()
        worker, num_workers = info.id, info.num_workers
        for name, value in (("id", 0), ("num_workers", 1)):
            # A dataset that shards itself by worker must yield all samples.
            object.__setattr__(info, name, value)
        try:
            yield from self.reader.read(
                start=self.start, stop=self.stop, worker=worker, num_workers=num_workers
            )
        except SampleError as error:
            yield _Failed(error)


def read_map_in_processes(
    reader: SampleReader,
    plans: Iterator[StepPlan],
    *,
    num_workers: int,
    pin_memory: bool,
    options: Mapping[str, Any],
) -> Iterator[ReadBatch]:
    """Yield micro-batches of a map dataset, in order, read by worker processes."""
    wanted = ((plan, place) for plan in plans for place in range(len(plan.batches)))
    return _run_workers(_MapWorker(reader), wanted, num_workers, pin_memory, options)


def read_stream_in_processes(
    reader: StreamReader,
    *,
    start: int,
    stop: int | None,
    num_workers: int,
    pin_memory: bool,
    options: Mapping[str, Any],
) -> Iterator[ReadBatch]:
    """Yield micro-batches of an iterable dataset, in order. Each worker process reads all of it."""
    work = _StreamWorker(reader, start, stop)
    return _run_workers(work, None, num_workers, pin_memory, options)


def _run_workers(
    work: Any,
    wanted: Iterator[Any] | None,
    num_workers: int,
    pin_memory: bool,
    options: Mapping[str, Any],
) -> Iterator[ReadBatch]:
    start = functools.partial(_start_worker, options.get("worker_init_fn"))
    loader = DataLoader(
        work,
        sampler=wanted,
        batch_size=None,
        collate_fn=_identity,
        num_workers=num_workers,
        pin_memory=pin_memory,
        generator=torch.Generator(),  # otherwise it draws from the training's generator
        **{**options, "worker_init_fn": start},
    )
    for item in loader:
        if isinstance(item, _Failed):
            raise SampleError(item.message, hint=item.hint)
        yield item


def _identity(item: Any) -> Any:
    return item


def _start_worker(init: Callable[[int], None] | None, worker: int) -> None:
    """Set up a worker that survives the first SIGTERM, so that its rank can save first and then end it.

    The first one goes to the whole process group. The second comes from the rank and must end a busy worker.
    """
    signal.signal(signal.SIGTERM, _ignore_first_signal)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the rank handles Ctrl-C
    if init is not None:
        init(worker)


def _ignore_first_signal(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
