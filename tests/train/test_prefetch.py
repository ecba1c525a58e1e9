"""Threads and processes that read ahead. None outlives its use, and no group signal kills one too early."""

from __future__ import annotations

import multiprocessing
import os
import signal
from itertools import islice

import torch
from torch.utils.data import TensorDataset

from windlass.train.data.loader import Loader
from windlass.train.data.prefetch import read_ahead


def test_prefetch_stops_at_its_depth() -> None:
    made: list[int] = []

    def make() -> object:
        for number in range(100):
            made.append(number)
            yield number

    items = read_ahead(make(), depth=3)
    assert [next(items), next(items)] == [0, 1]
    items.close()
    assert len(made) <= 5


def test_an_iterator_without_items_ends() -> None:
    assert list(read_ahead(iter(()), depth=2)) == []


def test_worker_survives_a_signal_to_the_process_group() -> None:
    """A preempted rank continues for a step or two and saves. Its workers must not die before."""
    loader = Loader(list(range(400)), batch=4, num_workers=2, rank=0, world_size=1)
    steps = loader.steps()
    for _ in range(2):  # one item of each worker, so both have started
        next(steps)
    workers = multiprocessing.active_children()
    assert len(workers) == 2
    for worker in workers:
        os.kill(worker.pid, signal.SIGTERM)
        os.kill(worker.pid, signal.SIGINT)
    assert [step.index for step in islice(steps, 20)] == list(range(2, 22))
    assert all(worker.is_alive() for worker in workers)
    steps.close()
    for worker in workers:
        worker.join(20)
        assert worker.exitcode == 0


def test_forked_process_reads_with_its_own_threads() -> None:
    loader = Loader(TensorDataset(torch.arange(40)), batch=4, rank=0, world_size=1)
    steps = loader.steps()
    expected = next(steps).sample_ids  # the thread of this process is busy during the fork

    def work() -> None:
        os._exit(0 if next(loader.steps()).sample_ids == expected else 1)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(30)
    steps.close()
    assert process.exitcode == 0
