"""Names of itwinai's TorchTrainer. Each is supported or refused, and the migration page lists all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.optim.lr_scheduler import StepLR
from toy_training import make_data, make_net, make_trainer

from windlass.errors import SpecError
from windlass.train import Callback, TorchTrainer
from windlass.train.trainer.itwinai_names import (
    ATTRIBUTES,
    METHODS,
    NO_EFFECT,
    PER_RANK,
    REFUSED_ATTRIBUTES,
    REFUSED_METHODS,
    REFUSED_SETTINGS,
    SAME_SETTINGS,
    SETTINGS,
)
from windlass.train.trainer.trainer_options import TrainerOptions, read_options

PAGE = Path(__file__).parents[2] / "docs/guides/from-itwinai.md"


def rows_of(table: str) -> dict[str, str]:
    """Return the table under a heading of the page, as name -> the other cells."""
    text = PAGE.read_text().split(f"### {table}\n", 1)[1].split("\n#", 1)[0]
    cells = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    return {row[0].strip().strip("`"): "|".join(row[1:]).strip() for row in cells}


# The page and the code.


def test_the_page_lists_every_method():
    expected = {**METHODS, **{name: f"refused: {why}" for name, why in REFUSED_METHODS.items()}}
    assert rows_of("Methods") == expected


def test_the_page_lists_every_setting():
    expected = dict.fromkeys(SAME_SETTINGS, "the same name")
    expected |= {name: f"`{ours}`" for name, ours in SETTINGS.items()}
    expected[PER_RANK] = "the same: samples of one rank"
    for name in {**NO_EFFECT, **REFUSED_SETTINGS}:
        accepted = " or ".join(f"`{value!r}`" for value in dict.fromkeys(NO_EFFECT.get(name, ())))
        why = REFUSED_SETTINGS.get(name)
        outcome = f"only {accepted}: {why}" if accepted else f"refused: {why}"
        expected[name] = outcome if why else "accepted, no effect"
    assert rows_of("Settings") == expected


def test_the_page_lists_every_attribute():
    refused = {name: f"refused: {why}" for name, why in REFUSED_ATTRIBUTES.items()}
    assert rows_of("Attributes") == {**ATTRIBUTES, **refused}


# Methods.


def test_every_method_that_is_not_refused_exists():
    assert [name for name in METHODS if not callable(getattr(TorchTrainer, name, None))] == []


@pytest.mark.parametrize("name", sorted(REFUSED_METHODS))
def test_override_that_is_never_called_is_refused_at_start(tmp_path, name):
    kind = type("Mine", (TorchTrainer,), {name: lambda self, *args: None})
    with pytest.raises(SpecError, match=f"Mine overrides {name}, which this trainer never calls"):
        make_trainer(tmp_path, kind=kind)


def test_override_in_a_mixin_is_refused(tmp_path):
    class Mixin:
        def train_epoch(self):
            pass

    kind = type("Mine", (TorchTrainer, Mixin), {})
    with pytest.raises(SpecError, match="Mixin overrides train_epoch, which this trainer never"):
        make_trainer(tmp_path, kind=kind)


class TrainingConfiguration:
    """Stand-in for itwinai's configuration, which is a pydantic model."""

    def model_dump(self, *, exclude_unset):
        assert exclude_unset  # its other defaults are not the user's values
        return {"batch_size": 8, "optim_lr": 0.4}


def test_a_training_configuration_is_read(tmp_path):
    trainer = make_trainer(tmp_path, config=TrainingConfiguration())
    assert (trainer.config.batch_size, trainer.config.lr) == (8, 0.4)


def test_a_config_of_another_kind_is_refused(tmp_path):
    with pytest.raises(SpecError, match="config cannot be a object"):
        make_trainer(tmp_path, config=object())


def test_method_assigned_to_a_trainer_is_refused(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.train_epoch = lambda: None
    with pytest.raises(SpecError, match="train_epoch is set, but this trainer never calls it"):
        trainer.fit()


class Ported(TorchTrainer):
    """Trainer as one writes it for itwinai, except that train_step leaves gradients to the trainer."""

    def create_model_loss_optimizer(self):
        self.model = make_net()
        self.loss = torch.nn.functional.cross_entropy
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.config.optim_lr)
        self.lr_scheduler = StepLR(self.optimizer, 1, gamma=0.5)
        self.model, self.optimizer, self.lr_scheduler = self.strategy.distributed(
            self.model, self.optimizer, self.lr_scheduler
        )

    def create_dataloaders(self, train_dataset, validation_dataset=None, test_dataset=None):
        self.train_dataloader = self.strategy.create_dataloader(
            dataset=train_dataset,
            batch_size=self.config.batch_size,
            num_workers=self.config.num_workers_dataloader,
            generator=self.torch_rng,
            shuffle=self.config.shuffle_train,
        )
        self.validation_dataloader = self.strategy.create_dataloader(
            dataset=validation_dataset, batch_size=self.config.batch_size
        )
        self.test_dataloader = self.strategy.create_dataloader(dataset=test_dataset, batch_size=2)

    def set_epoch(self):
        super().set_epoch()
        self.epochs_seen = [*getattr(self, "epochs_seen", []), self.current_epoch]

    def train_step(self, batch, batch_idx):
        x, y = batch[0].to(self.device), batch[1].to(self.device)
        output = self.model(x)
        return self.loss(output, y), self.compute_metrics(true=y, pred=output)

    def compute_metrics(self, true, pred, logger_step=0, batch_idx=None, stage="train"):
        return {"mine": torch.tensor(1.0)}

    def test_step(self, batch, batch_idx):
        return torch.tensor(7.0), {}


class Rates(Callback):
    def __init__(self):
        self.rates, self.metrics = [], set()

    def on_step(self, trainer, step):
        self.rates.append(trainer.optimizer.param_groups[0]["lr"])

    def on_log(self, trainer, step, metrics):
        self.metrics |= set(metrics)


def run_ported(out, **settings):
    rates = Rates()
    trainer = Ported(
        config={
            "batch_size": 8,
            "optim_lr": 0.4,
            "shuffle_train": True,
            "num_workers_dataloader": 0,
        },
        **{"epochs": 3, **settings},
        strategy="ddp",
        random_seed=7,
        checkpoints_location=str(out),
        run_name="mine",
        disable_tqdm=True,
        callbacks=[rates],
        async_checkpoints=False,
        log_every=1,
    )
    result = trainer.execute(make_data(), make_data(8), make_data(6))
    return trainer, result, rates


def test_ported_methods_are_called_where_itwinai_calls_them(tmp_path):
    trainer, result, rates = run_ported(tmp_path)
    assert trainer.epochs_seen == [0, 1, 2]
    assert rates.rates == pytest.approx([0.2] * 5 + [0.1] * 5 + [0.05] * 5)
    assert "mine" in rates.metrics
    assert set(result.validation) == {"loss", "mine"}
    assert result.test == {"loss": 7.0}
    assert (trainer.current_epoch, trainer.epochs, trainer.run_name) == (3, 3, "mine")
    assert (trainer.random_seed, trainer.train_glob_step) == (7, 15)
    assert trainer.best_validation_metric == result.best
    assert Path(result.folder) == tmp_path / "mine"


def test_a_resume_within_an_epoch_steps_the_scheduler_once(tmp_path):
    _, _, whole = run_ported(tmp_path / "whole")
    run_ported(tmp_path / "cut", steps=7)
    trainer, _, rates = run_ported(tmp_path / "cut")
    assert rates.rates == whole.rates[7:]
    assert trainer.epochs_seen == [1, 2]


def test_two_schedulers_are_refused(tmp_path):
    with pytest.raises(SpecError, match=r"sets self\.lr_scheduler, but scheduler or warmup"):
        run_ported(tmp_path, scheduler="cosine")


def test_log_takes_metrics(tmp_path):
    class Logs(TorchTrainer):
        def train_step(self, batch, batch_idx):
            self.log(self.progress.step, "counted", step=self.progress.step)
            return super().train_step(batch, batch_idx)

    make_trainer(tmp_path, kind=Logs, steps=3).fit()
    assert '"metrics":{"counted":2}' in (tmp_path / "run/metrics.jsonl").read_text()
    trainer = make_trainer(tmp_path)
    with pytest.raises(SpecError, match="'net' of kind 'model'"):
        trainer.log(make_net(), "net", kind="model")


# Settings.


def read(**settings):
    return read_options(TrainerOptions, settings, None)


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_itwinai_setting_names_set_our_settings(name):
    value = {"optim_lr": 0.5, "shuffle_train": False, "run_name": "a", "checkpoints_location": "b"}
    options = read(**{name: value.get(name, 3)})
    assert getattr(options, SETTINGS[name]) == value.get(name, 3)
    assert getattr(options, name) == value.get(name, 3)


@pytest.mark.parametrize("name", sorted({**NO_EFFECT, **REFUSED_SETTINGS}))
def test_settings_without_effect_are_accepted_and_others_refused(name):
    for value in NO_EFFECT.get(name, ()):
        assert read(**{name: value}) == TrainerOptions()
    if name in REFUSED_SETTINGS:
        with pytest.raises(SpecError, match=f"itwinai's setting {name}='other' is not supported"):
            read(**{name: "other"})


# Attributes.


@pytest.mark.parametrize("name", sorted(ATTRIBUTES))
def test_attributes_can_be_read(tmp_path, name):
    getattr(make_trainer(tmp_path), name)


@pytest.mark.parametrize("name", sorted(REFUSED_ATTRIBUTES))
def test_missing_attributes_name_their_replacement(tmp_path, name):
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; hint: "):
        getattr(make_trainer(tmp_path), name)


@pytest.mark.parametrize("name", ["logger", "profiler"])
def test_attributes_that_nothing_uses_are_refused(tmp_path, name):
    class Sets(TorchTrainer):
        def create_model_loss_optimizer(self):
            super().create_model_loss_optimizer()
            setattr(self, name, object())

    with pytest.raises(SpecError, match=rf"Sets sets self\.{name}, but no code uses it"):
        make_trainer(tmp_path, kind=Sets).fit()
