"""Training runs of Hugging Face's Trainer and itwinai's, with a record of each step. Runs in ranks of a job.

Each rank writes the samples and loss of every step, as `resume_phases` does for TorchTrainer. Data, model and
batch are those of `docs/guides/from-itwinai.md`: 44 samples, 8 a step on two ranks.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

NUM_SAMPLES, NUM_FEATURES, NUM_CLASSES = 44, 6, 3
RANK_BATCH = 4


class Points(torch.utils.data.Dataset):
    """Dataset whose samples have their number as the last feature."""

    def __init__(self) -> None:
        inputs = torch.randn(NUM_SAMPLES, NUM_FEATURES, generator=torch.Generator().manual_seed(1))
        self.classes = inputs[:, :NUM_CLASSES].argmax(1)
        self.inputs = torch.cat([inputs, torch.arange(NUM_SAMPLES)[:, None]], 1)

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[index], self.classes[index]


class TinyNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Linear(NUM_FEATURES, 16), nn.Tanh(), nn.Linear(16, NUM_CLASSES))
        self.layers = nn.Sequential(*layers)
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        if self.training:
            self.seen += x[:, NUM_FEATURES].int().tolist()
        output = self.layers(x[:, :NUM_FEATURES])
        if labels is None:
            return output
        return {"loss": nn.functional.cross_entropy(output, labels), "logits": output}


def _open(folder: str, case: str) -> Any:
    torch.set_num_threads(1)
    return (Path(folder) / f"{case}-rank-{os.environ['RANK']}.jsonl").open("w", buffering=1)


def train_with_hf(folder: str, cases: list[dict[str, Any]]) -> None:
    for case in cases:
        _train_with_hf(folder, **case)


def _train_with_hf(
    folder: str,
    case: str,
    *,
    rank_batch: int = RANK_BATCH,
    accumulate: int = 1,
    stop: int | None = None,
    resume: str | None = None,
) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

    file = _open(folder, case)
    set_seed(7)
    model = TinyNet()

    class Recorder(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            file.write(json.dumps({"step": state.global_step, "ids": model.seen}) + "\n")
            model.seen = []
            control.should_training_stop = state.global_step == stop

        def on_log(self, args, state, control, logs=None, **_):
            if "loss" in (logs or {}):
                file.write(json.dumps({"step": state.global_step, "loss": logs["loss"]}) + "\n")

    def collate(samples):
        inputs, classes = zip(*samples, strict=True)
        return {"x": torch.stack(inputs), "labels": torch.stack(classes)}

    args = TrainingArguments(
        output_dir=str(Path(folder) / case),
        per_device_train_batch_size=rank_batch,
        gradient_accumulation_steps=accumulate,
        num_train_epochs=3,
        learning_rate=3e-2,
        lr_scheduler_type="cosine",
        logging_steps=1,
        save_steps=6,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=7,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=Points(),
        data_collator=collate,
        callbacks=[Recorder()],
    )
    trainer.train(resume_from_checkpoint=resume and str(Path(folder) / resume))


def train_with_itwinai(folder: str, case: str, *, resume: str | None = None) -> None:
    """Train once per job, because itwinai leaves the process group at the end."""
    os.environ["ITWINAI_FORCE_DIST"] = "1"  # allows distributed training without GPUs
    from itwinai.torch.trainer import TorchTrainer

    file = _open(folder, case)
    torch.manual_seed(7)

    class Recorded(TorchTrainer):
        def train_step(self, batch, batch_idx):
            loss, metrics = super().train_step(batch, batch_idx)
            ids = batch[0][:, NUM_FEATURES].int().tolist()
            step = self.current_epoch * len(self.train_dataloader) + batch_idx + 1
            record = {"step": step, "ids": ids, "loss": loss.item()}
            file.write(json.dumps({**record, "best": float(self.best_validation_metric)}) + "\n")
            return loss, metrics

    trainer = Recorded(
        config={
            "batch_size": RANK_BATCH,
            "optimizer": "adam",
            "optim_lr": 3e-2,
            "loss": "cross_entropy",
            "dist_backend": "gloo",
            "num_workers_dataloader": 0,
            "shuffle_train": True,
        },
        epochs=6,
        model=TinyNet(),
        strategy="ddp",
        random_seed=7,
        checkpoints_location=str(Path(folder) / case),
        checkpoint_every=1,
        disable_tqdm=True,
        from_checkpoint=resume and str(Path(folder) / resume),
    )
    trainer.execute(Points(), Points())
