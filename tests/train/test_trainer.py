"""TorchTrainer in one process without a launcher: the training loop and everything around it."""

from __future__ import annotations

import logging
import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import (
    TensorDataset,
)
from toy_training import Recorder, make_data, make_net, make_trainer

from windlass.errors import SpecError
from windlass.train import Callback, ConsoleCallback, Preempted, TorchTrainer


def test_it_learns_and_logs(tmp_path):
    recorder = Recorder()
    result = make_trainer(
        tmp_path,
        recorder=recorder,
        epochs=10,
        validation=make_data(13, seed=2),
        metrics={"accuracy": lambda output, target: (output.argmax(1) == target).float().mean()},
    ).fit()
    assert result.step == 50
    assert list(recorder.losses) == list(range(1, 51))
    assert recorder.epochs == list(range(1, 11))
    assert recorder.losses[50] < 0.7 * recorder.losses[1]
    assert result.validation == recorder.validations[-1]
    assert set(result.validation) == {"loss", "accuracy"}
    assert result.best == min(validation["loss"] for validation in recorder.validations)
    assert (tmp_path / "run/metrics.jsonl").is_file()


@pytest.mark.parametrize("micro_batch", [1, 3, 8])
def test_accumulated_steps_equal_whole_batch_steps(tmp_path, micro_batch):
    """The last micro-batch, and the last batch of an epoch, may be smaller."""
    data = make_data(21)
    whole, split = Recorder(), Recorder()
    make_trainer(tmp_path / "whole", recorder=whole, data=data).fit()
    make_trainer(tmp_path / "split", recorder=split, data=data, micro_batch=micro_batch).fit()
    assert split.losses == pytest.approx(whole.losses, abs=1e-6)
    assert split.sample_ids == whole.sample_ids


def test_step_equals_a_handwritten_loop(tmp_path):
    data = make_data(16)
    torch.manual_seed(5)
    model = make_net()
    by_hand = make_net()
    by_hand.load_state_dict(model.state_dict())
    optimizer = torch.optim.AdamW(by_hand.parameters(), lr=1e-2)
    for _ in range(3):
        nn.functional.cross_entropy(by_hand(data.tensors[0]), data.tensors[1]).backward()
        nn.utils.clip_grad_norm_(by_hand.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    make_trainer(
        tmp_path,
        model=model,
        data=data,
        batch=16,
        epochs=3,
        shuffle=False,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-2),
    ).fit()
    for mine, theirs in zip(model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)


def test_batch_weight_is_used(tmp_path):
    """The loss is a mean over tokens, and samples have different numbers of tokens."""
    data = make_data(24)
    lengths = torch.arange(24) % 5 + 1

    class WeightedTrainer(TorchTrainer):
        def batch_weight(self, batch):
            return batch[2].sum()

        def train_step(self, batch, batch_idx):
            inputs, target, length = batch
            losses = nn.functional.cross_entropy(self.model(inputs), target, reduction="none")
            return (losses * length).sum() / length.sum()

        validation_step = train_step

    recorders = [Recorder(), Recorder()]
    for recorder, micro_batch in zip(recorders, (None, 3), strict=True):
        weighted = TensorDataset(*data.tensors, lengths)
        make_trainer(
            tmp_path / str(micro_batch),
            recorder=recorder,
            kind=WeightedTrainer,
            data=weighted,
            validation=weighted,
            micro_batch=micro_batch,
        ).fit()
    assert recorders[1].losses == pytest.approx(recorders[0].losses, abs=1e-6)
    assert recorders[1].validations[-1] == pytest.approx(recorders[0].validations[-1], abs=1e-6)


def test_it_resumes_where_it_stopped(tmp_path):
    whole, first, second = Recorder(), Recorder(), Recorder()
    settings = {"validation": make_data(13, seed=2), "scheduler": "cosine", "weight_decay": 0.1}
    expected = make_trainer(tmp_path / "whole", recorder=whole, epochs=4, **settings).fit()

    class Stopper(Callback):
        def on_step(self, trainer, step):
            if step.index == 8:
                trainer.stop()

    stopped = make_trainer(tmp_path / "cut", epochs=4, **settings)
    stopped.callbacks = [first, Stopper()]
    halfway = stopped.fit()
    assert (halfway.step, halfway.is_stopped_early) == (9, True)
    result = make_trainer(tmp_path / "cut", recorder=second, epochs=4, **settings).fit()
    assert {**first.losses, **second.losses} == whole.losses
    assert first.sample_ids + second.sample_ids == whole.sample_ids
    assert (result.resumed_from, result.best, result.best_step) == (
        9,
        expected.best,
        expected.best_step,
    )
    again = make_trainer(tmp_path / "cut", epochs=4, **settings).fit()
    assert (again.step, again.resumed_from, again.best) == (20, 20, expected.best)


def test_preemption_saves_and_stops(tmp_path):
    class Notice(Callback):
        def on_step(self, trainer, step):
            if step.index == 2:
                trainer.context.preemption.notice()

    recorder = Recorder()
    trainer = make_trainer(tmp_path, recorder=recorder, checkpoint_epochs=False)
    trainer.callbacks.append(Notice())
    try:
        with pytest.raises(Preempted) as caught:
            trainer.fit()
    finally:
        trainer.context.preemption._deadline_s = None
    assert caught.value.code == 143
    assert str(caught.value) == "saved step 3, to resume from it"
    assert recorder.checkpoints == [3]
    assert make_trainer(tmp_path).fit().resumed_from == 3


def test_preemption_without_checkpoints_reports_none(tmp_path, capsys):
    class Notice(Callback):
        def on_step(self, trainer, step):
            trainer.context.preemption.notice()

    trainer = make_trainer(tmp_path, checkpoint_every=0)
    trainer.callbacks = [Notice(), ConsoleCallback()]
    try:
        with pytest.raises(Preempted, match="checkpoint_every=0 disables checkpoints"):
            trainer.fit()
    finally:
        trainer.context.preemption._deadline_s = None
    assert "[PREEMPTED] step=1 checkpoint_every=0" in capsys.readouterr().out
    assert make_trainer(tmp_path).fit().resumed_from is None


def test_non_finite_gradients_are_skipped_and_reported(tmp_path, caplog):
    class Spiky(TorchTrainer):
        def train_step(self, batch, batch_idx):
            loss = super().train_step(batch, batch_idx)
            return loss * math.inf if self.progress.step in (3, 4) else loss

    recorder = Recorder()
    with caplog.at_level(logging.WARNING):
        result = make_trainer(tmp_path, recorder=recorder, kind=Spiky).fit()
    assert result.num_skipped == 2
    assert math.isnan(recorder.losses[4])
    assert math.isfinite(result.loss)
    assert "were skipped" in caplog.text
    assert recorder.skipped[10] == 2


def test_resume_with_more_steps_uses_the_longer_schedule(tmp_path):
    """The rate is 0 at the end of a cosine schedule, but the longer schedule is only half done then."""
    make_trainer(tmp_path, scheduler="cosine").fit()
    rates = []

    class Rates(Recorder):
        def on_step(self, trainer, step):
            rates.append(trainer.optimizer.param_groups[0]["lr"])

    trainer = make_trainer(tmp_path, scheduler="cosine", epochs=4, recorder=Rates())
    rate_at_start = []
    trainer.callbacks[0].on_start = lambda trainer: rate_at_start.append(
        trainer.optimizer.param_groups[0]["lr"]
    )
    trainer.fit()
    assert rate_at_start == [pytest.approx(0.5e-2)]
    assert rates[0] < rate_at_start[0]


def test_device_set_later_applies_to_the_next_trainer(tmp_path):
    first = make_trainer(tmp_path / "a", device="cpu", epochs=1)
    assert first.device.type == "cpu"
    second = make_trainer(tmp_path / "b", device="meta", epochs=1)
    assert second.device.type == "meta"


def test_resume_with_another_rate_logs_the_one_in_use(tmp_path, caplog):
    recorder = Recorder()
    make_trainer(tmp_path, epochs=1).fit()
    trainer = make_trainer(tmp_path, lr=0.5, batch=10, recorder=recorder)
    trainer.fit()
    assert trainer.optimizer.param_groups[0]["lr"] == 1e-2
    assert "lr is 0.5, but was 0.01 when step 5 was saved: the optimizer keeps" in caplog.text
    assert "batch is 10, but was 8 when step 5 was saved: samples come in" in caplog.text
    assert "weight_decay was" not in caplog.text
    caplog.clear()
    make_trainer(
        tmp_path, lr=0.5, batch=10, epochs=4
    ).fit()  # the saved rate differs from the requested one
    assert "but was 0.01 when step" in caplog.text


def test_checkpoints_by_time(tmp_path):
    recorder = Recorder()
    make_trainer(
        tmp_path, recorder=recorder, checkpoint_every="0s", checkpoint_epochs=False, epochs=1
    ).fit()
    assert recorder.checkpoints == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision(tmp_path, precision):
    recorder, exact = Recorder(), Recorder()
    make_trainer(tmp_path / "low", recorder=recorder, precision=precision).fit()
    make_trainer(tmp_path / "full", recorder=exact).fit()
    finite = {step: loss for step, loss in recorder.losses.items() if math.isfinite(loss)}
    assert len(finite) >= 8  # fp16 may skip steps while it searches for its scale
    assert list(finite.values()) == pytest.approx([exact.losses[s] for s in finite], rel=0.1)
    assert list(finite.values()) != [exact.losses[s] for s in finite]


def test_log_lines_can_be_grepped(tmp_path, capsys):
    trainer = make_trainer(tmp_path, validation=make_data(5), log_every=5)
    trainer.callbacks = [ConsoleCallback()]
    trainer.fit()
    out = capsys.readouterr().out
    assert re.findall(r"^\[SAVED\] step=(\d+)", out, re.MULTILINE)[-1] == str(trainer.progress.step)
    tags = [tag for tag in re.findall(r"^\[(\w+)\]", out, re.MULTILINE) if tag != "SAVED"]
    assert tags == ["DDP", "VALID", "TRAIN", "EPOCH", "VALID", "TRAIN", "EPOCH", "DONE"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": None}, "must be a torch.nn.Module"),
        ({"data": None}, "no training data given"),
        ({"loss": "cross_entrop"}, "did you mean cross_entropy"),
        ({"optimizer": "adamww"}, "did you mean adamw"),
        ({"precision": "bf8"}, "available: fp32, bf16, fp16"),
        ({"optimizer": lambda _: 3}, "must return an optimizer, not a int"),
        ({"strategy": "deepspeed"}, "DeepSpeed"),
    ],
)
def test_missing_parts_are_reported(tmp_path, settings, message):
    with pytest.raises(SpecError, match=message):
        make_trainer(tmp_path, **settings).fit()


def test_unknown_keywords_are_errors():
    with pytest.raises(SpecError, match="did you mean micro_batch"):
        TorchTrainer(micro_batches=3)


def test_the_loop_fits_one_screen():
    source = Path(TorchTrainer.fit.__code__.co_filename).read_text()
    loop = source[source.index("    def _train(self)") : source.index("    def _steps(self)")]
    assert loop.count("\n") < 40


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ({}, {"optimizer": "sgd"}, "but was AdamW when step 3 was saved"),
        ({"scheduler": lambda o: StepLR(o, 3)}, {}, "Schedule cannot load the 'scheduler'"),
    ],
)
def test_other_optimizer_or_scheduler_cannot_resume(tmp_path, before, after, message):
    make_trainer(tmp_path, steps=3, **before).fit()
    with pytest.raises(SpecError, match=message):
        make_trainer(tmp_path, **after).fit()


def test_schedulers_that_never_step_are_refused(tmp_path):
    with pytest.raises(SpecError, match="ReduceLROnPlateau requires validation"):
        make_trainer(tmp_path, scheduler=ReduceLROnPlateau).fit()


@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        (None, "None"),
        (0.5, "0.5"),
        (torch.ones(3), r"of \[3\]"),
        ({"a": 1}, "None"),
        ((1, 2, 3), "1, 2, 3"),
    ],
)
def test_invalid_losses_are_reported(tmp_path, returned, shown):
    class Returns(TorchTrainer):
        def train_step(self, batch, batch_idx):
            return returned

    with pytest.raises(SpecError, match=rf"Returns\.train_step returned a loss .*{shown}"):
        make_trainer(tmp_path, kind=Returns).fit()


def test_loss_in_a_vector_of_one_is_accepted(tmp_path):
    class ReturnsVector(TorchTrainer):
        def train_step(self, batch, batch_idx):
            return super().train_step(batch, batch_idx).reshape(1)

    assert make_trainer(tmp_path, kind=ReturnsVector).fit().loss is not None


def test_optimizer_class_takes_the_same_settings_as_its_name(tmp_path):
    trainer = make_trainer(tmp_path, optimizer=torch.optim.SGD, lr=0.5, weight_decay=0.1)
    trainer.fit()
    groups = trainer.optimizer.param_groups
    assert [(group["lr"], group["weight_decay"]) for group in groups] == [(0.5, 0.1), (0.5, 0.0)]
