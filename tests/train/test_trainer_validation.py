"""Validations of a TorchTrainer: when they run, what they count, the best step, and early stopping."""

from __future__ import annotations

import math

import pytest
import torch
from toy_training import Recorder, make_data, make_trainer

from windlass.errors import SpecError
from windlass.train import TorchTrainer


def test_early_stop_and_best_by_max(tmp_path):
    values = iter([0.1, 0.5, 0.4, 0.3, 0.2, 0.9])

    class Scripted(TorchTrainer):
        def complete_metrics(self, metrics):
            return {**metrics, "score": next(values)}

    result = make_trainer(
        tmp_path,
        kind=Scripted,
        validation=make_data(5),
        epochs=6,
        best="max",
        best_metric="score",
        early_stop=2,
    ).fit()
    assert (result.best, result.best_step, result.step) == (0.5, 10, 20)
    assert result.is_stopped_early
    assert (tmp_path / "run/best").resolve().name == "step-10"


def test_run_that_stopped_early_does_not_continue(tmp_path):
    settings = {"validation": make_data(5), "lr": 0.0, "epochs": 6, "early_stop": 2}
    first = make_trainer(tmp_path, **settings).fit()
    again = make_trainer(tmp_path, **settings).fit()
    assert (first.step, again.step) == (15, 15)
    assert first.is_stopped_early
    assert again.is_stopped_early
    more_patient = make_trainer(tmp_path, **{**settings, "early_stop": 3}).fit()
    assert more_patient.step == 20


@pytest.mark.parametrize("options", [{}, {"validation": make_data(5), "validate_every": None}])
def test_an_early_stop_without_validations_is_refused(tmp_path, options):
    with pytest.raises(SpecError, match="early_stop=2 requires validation, but none is configured"):
        make_trainer(tmp_path, early_stop=2, **options).fit()


def test_validation_batch_of_zero_weight_has_no_effect(tmp_path):
    def count_some(batch):
        return (batch[1] != 2).sum()

    class NoMean(TorchTrainer):
        def validation_step(self, batch, batch_idx):
            loss = super().validation_step(batch, batch_idx)[0]
            return torch.tensor(float("nan")) if not count_some(batch) else loss

    data = make_data(4)
    data.tensors[1].copy_(torch.tensor([0, 1, 2, 2]))
    settings = {"kind": NoMean, "micro_batch": 2, "batch_weight": count_some, "epochs": 1}
    result = make_trainer(tmp_path / "some", validation=data, **settings).fit()
    assert math.isfinite(result.validation["loss"])
    data.tensors[1].fill_(2)
    with pytest.raises(SpecError, match="every batch of the validation data has weight 0"):
        make_trainer(tmp_path / "none", validation=data, **settings).fit()


def test_missing_metric_is_reported(tmp_path):
    trainer = make_trainer(tmp_path, validation=make_data(5), best_metric="los")
    with pytest.raises(SpecError, match="did you mean loss"):
        trainer.fit()


def test_validation_and_checkpoints_at_step_intervals(tmp_path):
    recorder = Recorder()
    make_trainer(
        tmp_path,
        recorder=recorder,
        steps=7,
        epochs=None,
        validation=make_data(5),
        validate_every=3,
        checkpoint_every=4,
        checkpoint_epochs=False,
    ).fit()
    assert len(recorder.validations) == 3  # after steps 3 and 6, and at the end
    assert recorder.checkpoints == [3, 4, 6, 7]  # each of these was either the best so far or due
    recorder = Recorder()
    make_trainer(tmp_path / "never", recorder=recorder, checkpoint_every=0).fit()
    assert recorder.checkpoints == []
    assert not list((tmp_path / "never/run").glob("step-*"))


def test_training_that_ends_before_first_validation_is_logged(tmp_path, caplog):
    make_trainer(tmp_path, steps=1, epochs=None, batch=4, validation=make_data(5)).fit()
    assert "this training only 1, so it is not validated; hint: validate_every=N" in caplog.text


def test_run_already_past_its_limit_is_logged(tmp_path, caplog):
    make_trainer(tmp_path, steps=3, epochs=None).fit()
    assert make_trainer(tmp_path, steps=2, epochs=None).fit().step == 3
    assert "this run is already at step 3, past its end at 2" in caplog.text


def test_validation_data_is_optional(tmp_path):
    assert make_trainer(tmp_path).fit().validation == {}
