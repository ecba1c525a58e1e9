from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from windlass.errors import SpecError
from windlass.train.data.step_plan import make_order


@pytest.mark.parametrize("num_samples", [1, 2, 3, 7, 1000, 2**17 + 1])
def test_every_sample_comes_once(num_samples: int) -> None:
    order = make_order(num_samples, seed=1, epoch=2)
    assert sorted(order[:]) == list(range(num_samples))
    assert len(order) == num_samples


def test_many_small_sizes_are_permutations() -> None:
    for num_samples in range(1, 80):
        assert sorted(make_order(num_samples, seed=3, epoch=0)) == list(range(num_samples))


def test_seed_and_epoch_change_the_order() -> None:
    orders = {
        tuple(make_order(1000, seed=seed, epoch=epoch)[:])
        for seed in range(4)
        for epoch in range(4)
    }
    assert len(orders) == 16


def test_order_never_changes() -> None:
    """Checkpoints depend on these values. Changing them breaks the resume of every existing run."""
    assert make_order(10, seed=0, epoch=0)[:] == [9, 3, 2, 4, 0, 1, 7, 5, 6, 8]
    assert make_order(1000, seed=0, epoch=0)[:6] == [484, 79, 186, 813, 80, 521]
    assert make_order(1000, seed=42, epoch=7)[994:] == [452, 275, 301, 965, 409, 447]
    assert make_order(2**40 + 3, seed=5, epoch=9)[2**39 : 2**39 + 3] == [
        41827492316,
        512522993168,
        114430586355,
    ]


def test_single_index_matches_a_slice() -> None:
    order = make_order(10_000, seed=1, epoch=1)
    whole = order[:]
    assert [order[0], order[4095], order[4096], order[-1]] == [
        whole[0],
        whole[4095],
        whole[4096],
        whole[-1],
    ]
    assert order[4000:4200] == whole[4000:4200]
    assert order[::-997] == whole[::-997]
    assert order[20:10] == []
    with pytest.raises(IndexError, match="position 10000"):
        order[10_000]


def test_order_without_shuffle_is_sequential() -> None:
    assert make_order(9, seed=1, epoch=1, shuffle=False)[2:5] == [2, 3, 4]


def test_first_sample_is_uniformly_distributed() -> None:
    firsts = Counter(make_order(16, seed=seed, epoch=0)[0] for seed in range(480))
    chi_square = sum((firsts[sample] - 30) ** 2 / 30 for sample in range(16))
    assert chi_square < 40  # 15 degrees of freedom: one in 2,000 seeds of this test exceeds this


def test_neighbors_are_separated() -> None:
    order = make_order(10_000, seed=0, epoch=0)[:]
    assert sum(abs(a - b) == 1 for a, b in pairwise(order)) < 20


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(SpecError, match="cannot order -1 samples"):
        make_order(-1, seed=0, epoch=0)
