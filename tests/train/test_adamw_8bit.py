"""AdamW with one-byte moments: selection by name, and exact resume."""

from __future__ import annotations

import importlib.util
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from toy_training import Recorder, make_trainer

from windlass.errors import SpecError

needs_torchao = pytest.mark.skipif(
    importlib.util.find_spec("torchao") is None, reason="torchao is not installed"
)


@pytest.fixture(autouse=True)
def uncompiled():
    """Disable compilation, which takes longer than all of these training runs."""
    with torch.compiler.set_stance("force_eager"):
        yield


def make_wide_net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 3))


def make_wide_data() -> TensorDataset:
    inputs = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, inputs[:, :3].argmax(1))


def run(out, **settings):
    recorder = Recorder()
    parts = {"model": make_wide_net, "data": make_wide_data(), "recorder": recorder}
    trainer = make_trainer(out, **{**parts, "optimizer": "adamw8bit", **settings})
    trainer.fit()
    return recorder.losses, trainer


def test_missing_torchao_has_an_install_hint(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    with pytest.raises(SpecError, match="needs torchao") as refused:
        run(tmp_path)
    assert refused.value.hint == "run `pip install torchao`"


@needs_torchao
def test_it_learns_as_adamw_does_with_small_moments(tmp_path):
    losses, trainer = run(tmp_path / "small")
    exact, _ = run(tmp_path / "exact", optimizer="adamw")
    assert losses == pytest.approx(exact, abs=0.02)
    weight = trainer.laid_out.model[0].weight
    assert trainer.optimizer.state[weight]["exp_avg"].codes.dtype is torch.uint8


@needs_torchao
@pytest.mark.parametrize("scheduler", ["constant", "cosine"])
def test_a_resume_is_exact(tmp_path, scheduler):
    settings = {"epochs": None, "steps": 16, "scheduler": scheduler, "checkpoint_every": 5}
    whole, _ = run(tmp_path / "whole", **settings)

    class Stops(Recorder):
        def on_step(self, trainer, step):
            if step.index == 4:
                trainer.stop()

    run(tmp_path / "parts", **settings, recorder=(begun := Stops()))
    rest, trainer = run(tmp_path / "parts", **settings)
    assert trainer.parts.resumed_from in range(5, 12)
    assert {**begun.losses, **rest} == whole
    weight = trainer.laid_out.model[0].weight
    assert trainer.optimizer.state[weight]["exp_avg"].codes.dtype is torch.uint8
