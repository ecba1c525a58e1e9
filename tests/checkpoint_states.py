"""States of small trainings for the tests of checkpoints: a model, its optimizer, its schedule."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def make_state(*, seed: int = 0, width: int = 8) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    return {"model": model, "optimizer": optimizer, "schedule": schedule}


def train(state: dict[str, Any], *, num_steps: int) -> None:
    for _ in range(num_steps):
        state["optimizer"].zero_grad()
        state["model"](torch.randn(6, 4)).square().mean().backward()
        state["optimizer"].step()
        state["schedule"].step()


def fill(state: dict[str, Any], value: float) -> dict[str, Any]:
    """Let all parameters be this number."""
    with torch.no_grad():
        for parameter in state["model"].parameters():
            parameter.fill_(value)
    return state


def same_state(one: dict[str, Any], other: dict[str, Any]) -> bool:
    first, second = (
        (
            state["model"].state_dict(),
            list(state["optimizer"].state_dict()["state"].values()),
            state["schedule"].state_dict(),
        )
        for state in (one, other)
    )
    return (
        all(torch.equal(value, second[0][name]) for name, value in first[0].items())
        and all(
            torch.equal(value, theirs[name])
            for ours, theirs in zip(first[1], second[1], strict=True)
            for name, value in ours.items()
        )
        and first[2] == second[2]
    )
