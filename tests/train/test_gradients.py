"""Gradient clipping and skipped steps."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from windlass.train.trainer.step_update import (
    clip_gradients,
    make_skip_flag,
    step_if_finite,
    step_unless,
)


def make_parameters(*gradients: float) -> list[nn.Parameter]:
    parameters = [nn.Parameter(torch.zeros(1)) for _ in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = torch.tensor([gradient])
    return parameters


def test_norm_of_all_gradients_is_scaled_to_the_limit():
    parameters = make_parameters(3.0, 4.0)
    assert clip_gradients(parameters, 1.0).item() == pytest.approx(5.0)
    assert [p.grad.item() for p in parameters] == pytest.approx([0.6, 0.8], abs=1e-5)


@pytest.mark.parametrize("limit", [None, 0, 10.0])
def test_small_gradients_and_no_limit_change_nothing(limit):
    parameters = make_parameters(3.0, 4.0)
    assert clip_gradients(parameters, limit).item() == pytest.approx(5.0)
    assert [p.grad.item() for p in parameters] == [3.0, 4.0]


def test_parameters_without_gradients():
    assert clip_gradients([nn.Parameter(torch.zeros(1))], 1.0).item() == 0.0


@pytest.mark.parametrize(
    ("gradient", "is_stepped"), [(1.0, True), (math.inf, False), (math.nan, False)]
)
@pytest.mark.parametrize("is_in_kernel", [False, True])
def test_skipped_step_leaves_moments_unchanged(gradient, is_stepped, is_in_kernel):
    (parameter,) = make_parameters(gradient)
    optimizer = torch.optim.AdamW([parameter], lr=0.1, fused=is_in_kernel)
    norm = clip_gradients([parameter], 1.0)
    if is_in_kernel:
        flag = make_skip_flag(optimizer, norm)
        assert flag is not None
        step_unless(optimizer, flag)
    else:
        step_if_finite(optimizer, norm)
    assert (parameter.item() != 0.0) == is_stepped
    steps = optimizer.state[parameter].get("step", torch.zeros(()))
    assert steps.item() == is_stepped


def test_optimizer_that_cannot_skip_a_step_itself():
    (parameter,) = make_parameters(1.0)
    assert make_skip_flag(torch.optim.AdamW([parameter], fused=False), torch.ones(())) is None
