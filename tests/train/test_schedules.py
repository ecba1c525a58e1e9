"""Learning rates by step."""

from __future__ import annotations

import pytest
import torch

from windlass.errors import SpecError
from windlass.train.trainer.optimizers import SCHEDULES, make_schedule, rate_at


def rates(schedule: str, *, warmup: int = 0, total: int = 10) -> list[float]:
    return [rate_at(step, schedule=schedule, warmup=warmup, total=total) for step in range(total)]


def test_warm_up_rises_from_above_zero_to_the_full_rate():
    assert rates("constant", warmup=3, total=6) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_schedules_start_at_full_rate_and_never_rise(schedule):
    values = rates(schedule, total=50)
    assert values[0] == 1.0
    assert values == sorted(values, reverse=True)
    assert values[-1] == (1.0 if schedule == "constant" else pytest.approx(0.0, abs=0.11))


def test_wsd_is_constant_before_it_decays():
    assert rates("wsd", total=10)[:9] == pytest.approx([1.0] * 9)


def test_the_first_step_has_the_first_rate():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    schedule = make_schedule(optimizer, "linear", warmup=0, total=4)
    seen = []
    for _ in range(4):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert seen == [2.0, 1.5, 1.0, 0.5]


def test_misspelled_schedule_is_refused():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    with pytest.raises(SpecError, match="did you mean cosine"):
        make_schedule(optimizer, "cosin", warmup=0, total=4)
