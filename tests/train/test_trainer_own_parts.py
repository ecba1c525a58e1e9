"""User parts of a TorchTrainer: subclasses, DataLoaders, and models that return their loss."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from toy_training import Recorder, make_data, make_net, make_trainer

from windlass.errors import SpecError
from windlass.train import ConsoleCallback, TorchTrainer


class OldTrainer(TorchTrainer):
    """Subclass as written for itwinai."""

    def create_model_loss_optimizer(self):
        self.model = make_net()
        self.loss = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.config.lr)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3)

    def train_step(self, batch, batch_idx):
        x, y = batch
        return self.loss(self.model(x), y), {"accuracy": 1.0}

    def validation_step(self, batch, batch_idx):
        x, y = batch
        return self.loss(self.model(x), y)


def test_itwinai_style_subclasses(tmp_path):
    trainer = OldTrainer(
        config={"lr": 0.1, "batch": 8, "async_checkpoints": False},
        epochs=2,
        strategy="ddp",
        out=tmp_path,
        callbacks=[],
    )
    result = trainer.execute(make_data(), make_data(5))
    assert result.step == 10
    assert result.best is not None
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.1**3)


def test_test_data_is_reported(tmp_path, capsys):
    trainer = make_trainer(tmp_path, callbacks=[ConsoleCallback()])
    result = trainer.execute(make_data(), None, make_data(7, seed=3))
    assert set(result.test) == {"loss"}
    assert f"[TEST] step=10 test_loss={result.test['loss']:.6g}" in capsys.readouterr().out
    assert trainer.evaluate(make_data(7, seed=3)) == result.test


def test_a_train_step_that_computes_gradients_is_refused(tmp_path):
    class StepsItself(TorchTrainer):
        def train_step(self, batch, batch_idx):
            loss = super().train_step(batch, batch_idx)
            loss.backward()
            self.optimizer.step()
            return loss, {}

    trainer = StepsItself(
        model=make_net, data=make_data(8), loss="cross_entropy", out=str(tmp_path), callbacks=[]
    )
    with pytest.raises(SpecError, match=r"StepsItself\.train_step computed gradients itself"):
        trainer.fit()


def test_a_model_that_returns_its_loss(tmp_path):
    class Rows(Dataset):
        def __len__(self):
            return 16

        def __getitem__(self, index):
            return {"x": torch.full((2,), float(index))}

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, x):
            return {"loss": self.layer(x / 16).pow(2).mean()}

    recorder = Recorder()
    make_trainer(tmp_path, recorder=recorder, model=Own, data=Rows(), loss=None).fit()
    assert recorder.losses[4] < recorder.losses[1]


def test_dataloader_settings_are_taken_over(tmp_path):
    trainer = make_trainer(tmp_path, data=DataLoader(make_data(), batch_size=10))
    assert trainer.fit().step == 8


@pytest.mark.parametrize(
    ("options", "is_mixed"),
    [
        ({}, False),
        ({"shuffle": True}, True),
        ({"sampler": DistributedSampler(range(40), num_replicas=1, rank=0)}, True),
        ({"sampler": DistributedSampler(range(40), num_replicas=1, rank=0, shuffle=False)}, False),
    ],
    ids=["plain", "mixed", "by its sampler", "plain by its sampler"],
)
def test_dataloader_keeps_shuffle_and_drop_last(tmp_path, options, is_mixed):
    recorder = Recorder()
    loader = DataLoader(make_data(), batch_size=9, drop_last=True, **options)
    result = make_trainer(tmp_path, recorder=recorder, data=loader, epochs=1).fit()
    assert result.step == 4
    sample_ids = [i for step in recorder.sample_ids for i in step]
    assert len(set(sample_ids)) == 36
    assert (sample_ids != list(range(36))) == is_mixed


def write_worker(worker):
    get_worker_info().dataset.reader.dataset.opened = f"by worker {worker}"


class Opened(Dataset):
    """Dataset that is readable only where a worker has opened it, as files that processes cannot share."""

    opened = ""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        assert self.opened.startswith("by worker")
        return torch.zeros(6), 0


def test_worker_arguments_of_a_dataloader_are_kept(tmp_path):
    loader = DataLoader(Opened(), batch_size=4, num_workers=1, worker_init_fn=write_worker)
    assert make_trainer(tmp_path, data=loader, epochs=1).fit().step == 2


def test_settings_of_dataloaders_made_by_a_subclass_are_taken_over(tmp_path):
    class MakesLoaders(TorchTrainer):
        def create_dataloaders(self):
            self.train_dataloader = DataLoader(make_data(), batch_size=10, shuffle=True)
            self.validation_dataloader = DataLoader(make_data(5), batch_size=2)

    recorder = Recorder()
    result = make_trainer(tmp_path, recorder=recorder, kind=MakesLoaders, data=None).fit()
    assert result.step == 8
    assert len(recorder.validations) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": WeightedRandomSampler([1.0] * 40, 20), "batch_size": 4},
        {"sampler": RandomSampler(range(40), num_samples=20), "batch_size": 4},
        {"batch_sampler": BatchSampler(SequentialSampler(range(40)), 4, drop_last=False)},
        {"batch_size": None},
    ],
    ids=["weighted", "some", "batches", "no batches"],
)
def test_dataloader_with_a_sampler_is_refused(tmp_path, options):
    trainer = make_trainer(tmp_path, data=DataLoader(make_data(), **options))
    with pytest.raises(SpecError, match="pass the dataset itself"):
        trainer.fit()
