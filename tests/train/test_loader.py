from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from itertools import islice, product
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset, get_worker_info

from windlass.errors import SpecError
from windlass.train.data.loader import DataStep, EvalLoader, Loader
from windlass.train.data.sample_reading import SampleError
from windlass.train.data.step_plan import Cutting


class Numbers:
    """Map dataset whose sample i is the number i."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> int:
        return index


class Broken(Numbers):
    def __getitem__(self, index: int) -> int:
        if index == 5:
            raise ValueError("bad pixels")
        return index


class Noisy(Numbers):
    """Dataset whose samples draw from all three global generators."""

    def __getitem__(self, index: int) -> list[float]:
        import numpy

        return [random.random(), float(torch.rand(())), float(numpy.random.rand())]


class Stream(IterableDataset):
    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.num_samples))


class NoisyStream(Stream):
    def __iter__(self) -> Iterator[float]:
        return (random.random() for _ in range(self.num_samples))


def read(steps: Iterator[DataStep]) -> list[tuple[Any, ...]]:
    """Return what a rank reads in steps, as comparable values."""
    return [
        (
            step.index,
            step.epoch,
            step.is_last_of_epoch,
            step.global_samples,
            [(b.weight, b.sample_ids, b.data) for b in plain(step)],
        )
        for step in steps
    ]


def plain(step: DataStep) -> list[Any]:
    from dataclasses import replace

    return [
        replace(b, data=b.data.tolist() if hasattr(b.data, "tolist") else b.data)
        for b in step.micro_batches
    ]


def global_samples(loaders: list[Loader], **where: int) -> list[list[int]]:
    """Return the sample ids of each step, over all ranks in order."""
    ranks = zip(*(loader.steps(**where) for loader in loaders), strict=True)
    return [[i for step in steps for i in step.sample_ids] for steps in ranks]


def make_world(dataset: Any, world_size: int, **options: Any) -> list[Loader]:
    return [
        Loader(dataset, rank=rank, world_size=world_size, **options) for rank in range(world_size)
    ]


@pytest.mark.parametrize("make", [Numbers, Stream], ids=["map", "iterable"])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize(("batch", "micro_batch"), [(8, 1), (8, None), (7, 2), (5, 3)])
def test_steps_hold_the_same_samples_at_any_world_size(
    make: type, drop_last: bool, batch: int, micro_batch: int | None
) -> None:
    options = {"batch": batch, "micro_batch": micro_batch, "drop_last": drop_last, "seed": 3}
    alone = global_samples(make_world(make(29), 1, **options), stop=12)
    assert len({len(step) for step in alone}) == (1 if drop_last or not 29 % batch else 2)
    for world_size in (2, 3, 4, 8):
        assert global_samples(make_world(make(29), world_size, **options), stop=12) == alone


def test_micro_batches_are_even() -> None:
    """A remainder of one sample has no variance, which BatchNorm refuses."""
    for num_samples, world_size, micro_batch in product(range(1, 40), (1, 2, 3), (1, 4, 8)):
        seen: list[int] = []
        for rank in range(world_size):
            cutting = Cutting(
                batch=40, micro_batch=micro_batch, rank=rank, world_size=world_size, drop_last=False
            )
            pieces = cutting.cut(num_samples)
            sizes = [len(piece) for piece in pieces]
            assert max(sizes) <= micro_batch
            assert max(sizes) - min(sizes) <= 1
            seen += [place for piece in pieces for place in piece]
        assert seen == list(range(num_samples))


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_ranks_have_equal_micro_batch_counts_and_exact_weights(world_size: int) -> None:
    loaders = make_world(
        Numbers(29), world_size, batch=7, micro_batch=2, drop_last=False, shuffle=False
    )
    for steps in zip(*(loader.steps(stop=10) for loader in loaders), strict=True):
        assert len({len(step.micro_batches) for step in steps}) == 1
        assert len({step.global_samples for step in steps}) == 1
        batches = [batch for step in steps for batch in step.micro_batches]
        assert sum(batch.weight for batch in batches) == steps[0].global_samples
        for batch in batches:
            assert batch.weight == len(batch.sample_ids) <= 2
            assert len(batch.data) == max(1, batch.weight)
            if batch.weight:
                assert batch.data.tolist() == list(batch.sample_ids)
    assert [step.global_samples for step in loaders[0].steps(stop=10)] == 2 * (4 * [7] + [1])
    assert [s.index for s in loaders[0].steps(stop=10) if s.is_last_of_epoch] == [4, 9]


@pytest.mark.parametrize("make", [Numbers, Stream], ids=["map", "iterable"])
@pytest.mark.parametrize("drop_last", [True, False])
def test_start_in_the_middle_gives_the_remaining_steps(make: type, drop_last: bool) -> None:
    loader = Loader(make(20), batch=6, micro_batch=2, drop_last=drop_last, rank=1, world_size=2)
    whole = read(loader.steps(stop=14))
    for start in range(14):
        assert read(loader.steps(start=start, stop=14)) == whole[start:]
    assert [step[0] for step in whole] == list(range(14))
    assert whole[-1][1] == (13 // (3 if drop_last else 4))


def test_an_epoch_holds_each_sample_once_and_differs_from_the_next() -> None:
    loader = Loader(Numbers(40), batch=8, rank=0, world_size=1)
    epochs = [
        [i for step in loader.steps(start=5 * e, stop=5 * e + 5) for i in step.sample_ids]
        for e in (0, 1)
    ]
    assert [sorted(epoch) for epoch in epochs] == [list(range(40))] * 2
    assert epochs[0] != epochs[1]
    assert loader.steps_per_epoch == 5


@pytest.mark.parametrize("make", [Numbers, Stream], ids=["map", "iterable"])
@pytest.mark.parametrize("num_samples", [1, 5, 16, 31])
def test_evaluation_reads_each_sample_once(make: type, num_samples: int) -> None:
    for world_size in (1, 2, 3, 4, 8):
        ranks = [
            list(EvalLoader(make(num_samples), micro_batch=4, rank=r, world_size=world_size))
            for r in range(world_size)
        ]
        assert len({len(batches) for batches in ranks}) == 1
        batches = [batch for rank in ranks for batch in rank]
        assert sorted(i for b in batches for i in b.sample_ids) == list(range(num_samples))
        assert sum(batch.weight for batch in batches) == num_samples
        weighted = sum(float(b.data.double().mean()) * b.weight for b in batches)
        assert weighted / num_samples == pytest.approx((num_samples - 1) / 2)


def test_without_a_launcher_one_rank_reads_all() -> None:
    assert len(next(Loader(Numbers(8), batch=8).steps()).sample_ids) == 8


@pytest.mark.parametrize("dataset", [Noisy(30), NoisyStream(30)], ids=["map", "iterable"])
def test_worker_processes_give_the_same_data(dataset: Any) -> None:
    """The data is also equal for random samples, at any world size, and from the middle."""

    def make(num_workers: int, world_size: int = 1) -> Loader:
        return Loader(
            dataset,
            batch=6,
            micro_batch=3,
            num_workers=num_workers,
            rank=0,
            world_size=world_size,
        )

    torch.manual_seed(7)
    before = torch.get_rng_state(), random.getstate()
    here = [str(step) for step in read(make(0).steps(stop=12))]
    assert [str(step) for step in read(make(2).steps(stop=12))] == here
    assert [str(step) for step in read(make(2).steps(start=7, stop=12))] == here[7:]
    assert len(set(here)) == 12
    assert torch.equal(before[0], torch.get_rng_state())  # the model's own generators are unchanged
    assert before[1] == random.getstate()
    first = next(make(0, world_size=2).steps())
    assert str(plain(first)[0].data) == str(plain(next(make(0).steps()))[0].data)


def mix_up(samples: list[int]) -> list[float]:
    """Collate a batch with random draws, as mixup does."""
    return [sum(samples), random.random(), float(torch.rand(()))]


@pytest.mark.parametrize("make", [Numbers, Stream], ids=["map", "iterable"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_collation_draws_differ_by_step_and_repeat_after_resume(
    make: type, num_workers: int
) -> None:
    def steps(seed: int = 0, start: int = 0) -> list[str]:
        loader = Loader(
            make(12),
            batch=4,
            seed=seed,
            collate=mix_up,
            num_workers=num_workers,
            rank=0,
            world_size=1,
        )
        return [str(step.micro_batches[0].data) for step in loader.steps(start=start, stop=6)]

    whole = steps()
    assert len({text.split(",")[1] for text in whole}) == 6
    assert steps(start=2) == whole[2:]
    assert steps() == whole
    assert not {text.split(",")[1] for text in steps(seed=1)} & {t.split(",")[1] for t in whole}


class NoisyTogether(Noisy):
    """Dataset that is read in lists of samples, as torch's Subset is."""

    def __getitems__(self, indices: list[int]) -> list[list[float]]:
        return [self[index] for index in indices]


def test_samples_read_together_draw_separately() -> None:
    def read_all(micro_batch: int) -> dict[int, str]:
        loader = Loader(
            NoisyTogether(8),
            batch=8,
            micro_batch=micro_batch,
            collate=list,
            rank=0,
            world_size=1,
        )
        step = next(loader.steps())
        return {
            number: str(sample)
            for batch in step.micro_batches
            for number, sample in zip(batch.sample_ids, batch.data, strict=True)
        }

    assert read_all(2) == read_all(8)
    assert len(set(read_all(4).values())) == 8


def test_random_tensor_dataset_is_not_read_by_a_thread() -> None:
    class Augmented(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            assert threading.current_thread() is threading.main_thread()
            return super().__getitem__(index)[0] + torch.rand(())

    data = torch.zeros(8)
    for options in ({"dataset": Augmented(data)}, {"dataset": TensorDataset(data), "collate": len}):
        loader = Loader(batch=4, rank=0, world_size=1, **options)
        torch.manual_seed(3)
        drawn = torch.rand(())
        torch.manual_seed(3)
        steps = loader.steps(stop=2)
        next(steps)
        assert torch.rand(()) == drawn
        assert not [t for t in threading.enumerate() if t.name == "windlass-prefetch"]
        steps.close()


class SharedOut(IterableDataset):
    """Dataset whose worker processes each yield a share of the samples, as in torch's documentation."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        yield from range(info.id, 16, info.num_workers) if info else range(16)


def test_dataset_split_over_workers_loses_no_sample() -> None:
    loader = Loader(SharedOut(), batch=4, num_workers=2, rank=0, world_size=1)
    read_samples = [step.micro_batches[0].data.tolist() for step in loader.steps(stop=4)]
    assert [sample for samples in read_samples for sample in samples] == list(range(16))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_unreadable_sample_is_named(num_workers: int) -> None:
    loader = Loader(
        Broken(8), batch=4, shuffle=False, num_workers=num_workers, rank=0, world_size=1
    )
    steps = loader.steps()
    assert next(steps).sample_ids == (0, 1, 2, 3)
    with pytest.raises(SampleError, match=r"sample 5 of Broken .* epoch 0: ValueError: bad pixels"):
        next(steps)


def test_samples_that_cannot_be_collated_are_named() -> None:
    loader = Loader([[1], [1, 2]], batch=2, shuffle=False, rank=0, world_size=1)
    with pytest.raises(SampleError, match=r"samples \[0, 1\] of epoch 0 could not be collated"):
        next(loader.steps())


def test_a_thread_reads_ahead_and_ends() -> None:
    dataset = TensorDataset(torch.arange(40), torch.arange(40) * 2)
    loader = Loader(dataset, batch=8, rank=0, world_size=1)
    numbers, doubles = next(loader.steps()).micro_batches[0].data
    assert torch.equal(doubles, numbers * 2)
    assert sum(1 for _ in loader.steps(stop=11)) == 11  # read to the end
    steps = loader.steps()
    assert [step.index for step in islice(steps, 3)] == [0, 1, 2]
    assert "windlass-prefetch" in [thread.name for thread in threading.enumerate()]
    steps.close()  # closed in the middle of an endless iterator
    assert "windlass-prefetch" not in [thread.name for thread in threading.enumerate()]


def test_error_in_the_thread_is_raised_to_the_reader() -> None:
    loader = Loader(Broken(8), batch=4, shuffle=False, prefetch=2, rank=0, world_size=1)
    steps = loader.steps()
    next(steps)
    with pytest.raises(SampleError, match="sample 5"):
        next(steps)
    assert "windlass-prefetch" not in [thread.name for thread in threading.enumerate()]


def test_thread_reads_the_same_data() -> None:
    ahead, here = (
        Loader(Numbers(20), batch=6, micro_batch=4, prefetch=p, rank=0, world_size=1)
        for p in (3, 0)
    )
    assert read(ahead.steps(stop=9)) == read(here.steps(stop=9))


def test_tensor_dataset_matches_collation() -> None:
    dataset = TensorDataset(torch.randn(12, 3), torch.arange(12))
    fast = next(Loader(dataset, batch=5, rank=0, world_size=1).steps()).micro_batches[0]
    slow = next(
        Loader(
            dataset,
            batch=5,
            rank=0,
            world_size=1,
            collate=torch.utils.data.default_collate,
        ).steps()
    ).micro_batches[0]
    assert all(torch.equal(a, b) for a, b in zip(fast.data, slow.data, strict=True))
    assert type(fast.data) is type(slow.data)


def test_iterable_gets_its_epoch_and_may_have_a_length() -> None:
    class Epochs(Stream):
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __len__(self) -> int:
            return 4

        def __iter__(self) -> Iterator[int]:
            return iter([100 * self.epoch + i for i in range(4)])

    loader = Loader(Epochs(4), batch=2, rank=0, world_size=1)
    assert loader.steps_per_epoch == 2
    assert next(loader.steps(start=5)).micro_batches[0].data.tolist() == [202, 203]


def test_invalid_datasets_are_reported() -> None:
    place = {"rank": 0, "world_size": 1}
    with pytest.raises(SpecError, match="Numbers has no samples"):
        Loader(Numbers(0), batch=1, **place)
    with pytest.raises(SpecError, match=r"a batch of 9 exceeds the 8 samples.*\n.*drop_last=F"):
        Loader(Numbers(8), batch=9, **place)
    assert Loader(Numbers(8), batch=9, drop_last=False, **place).steps_per_epoch == 1
    with pytest.raises(SpecError, match="batch=0"):
        Loader(Numbers(8), batch=0, **place)
    with pytest.raises(SpecError, match="rank 2 is out of range"):
        Loader(Numbers(8), batch=1, rank=2, world_size=2)
    with pytest.raises(SpecError, match="set the length of the training in steps"):
        _ = Loader(Stream(8), batch=2, **place).steps_per_epoch
    with pytest.raises(SpecError, match="epoch 0 of Stream has no steps"):
        next(Loader(Stream(0), batch=2, **place).steps())
    with pytest.raises(SpecError, match=r"epoch 1 of .*iterator has no steps"):
        list(Loader(iter([1, 2]), batch=2, **place).steps())
