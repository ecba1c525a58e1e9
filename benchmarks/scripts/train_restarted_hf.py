"""Hugging Face Trainer script whose recovery is measured, like train_restarted.py."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

OUT = Path(os.environ["BENCH_OUT"])
RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])


class Rows(Dataset):
    def __init__(self):
        self.inputs = torch.randn(4096, 64)
        self.labels = self.inputs[:, :4].argmax(1)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return {"inputs": self.inputs[index], "labels": self.labels[index]}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4))

    def forward(self, inputs, labels):
        logits = self.layers(inputs)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Stamps(TrainerCallback):
    """Writes the time of this attempt's first step, like the callback in train_restarted.py."""

    is_written = False
    steps_after = 0

    def on_step_end(self, args, state, control, **kwargs):
        now_s = time.time()
        is_ready = ATTEMPT > 0 or get_last_checkpoint(str(OUT / "hf")) is not None
        if not self.is_written and is_ready:
            beside = OUT / f".{ATTEMPT}-{RANK}"
            beside.write_text(f"{os.getpid()} {now_s!r} {state.global_step}")
            beside.rename(OUT / f"attempt-{ATTEMPT}-rank-{RANK}")
            self.is_written = True
        if ATTEMPT == 0:
            time.sleep(0.01)
        else:
            self.steps_after += 1
            control.should_training_stop = self.steps_after == 5


torch.set_num_threads(1)
arguments = TrainingArguments(
    output_dir=str(OUT / "hf"),
    use_cpu=True,
    per_device_train_batch_size=32 // int(os.environ["WORLD_SIZE"]),
    max_steps=10**6,
    save_steps=5,
    save_total_limit=2,
    logging_steps=1000,
    report_to="none",
    disable_tqdm=True,
)
trainer = Trainer(model=Net(), args=arguments, train_dataset=Rows(), callbacks=[Stamps()])
(OUT / "hf").mkdir(exist_ok=True)
trainer.train(resume_from_checkpoint=get_last_checkpoint(str(OUT / "hf")))
dist.destroy_process_group()
