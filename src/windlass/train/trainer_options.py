"""Every setting of a training, with its default: what a config file and the command line may set.

Plain data. `TorchTrainer` takes each as a keyword; `trainer_config` reads them from YAML, dicts and
flags. Settings of one's own are fields of a subclass, named by `TorchTrainer.options_type`, so that a
misspelt one is an error as well.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from windlass.errors import SpecError
from windlass.train.itwinai_names import SETTINGS

_FROM_1_UP = (
    *(
        "epochs",
        "steps",
        "batch",
        "batch_size",
        "tokens_per_step",
        "tokens_per_sample",
        "micro_batch",
    ),
    *("early_stop", "validate_every"),
)
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerOptions:
    """The settings of a `TorchTrainer`."""

    epochs: int | None = None  # 1, unless steps are given
    steps: int | None = None  # optimizer steps in all
    batch: int = 32  # samples of one optimizer step, over ALL ranks
    batch_size: int | None = None  # of one rank, instead of batch; itwinai's name
    tokens_per_step: int | None = None  # instead of batch, where every sample has as many tokens
    tokens_per_sample: int | None = None  # for tokens_per_step, and tokens per second
    micro_batch: int | None = None  # samples a rank takes at once; the rest is accumulated
    loss: str | None = None  # cross_entropy, mse ...; the model's own, unless given
    optimizer: str = "adamw"  # adamw, adam, sgd, adamw8bit
    scheduler: str = "constant"  # of the rate: constant, linear, cosine, wsd
    lr: float = 1e-3  # the rate after the warm-up
    weight_decay: float = 0.0  # of matrices, not of biases and norms
    warmup: int = 0  # steps
    clip: float | None = 1.0  # the norm of all gradients
    strategy: str = "ddp"  # fsdp, hsdp, deepspeed; sizes: fsdp=8,dp=2
    zero_stage: int = 2  # of strategy "deepspeed"
    precision: str = "fp32"  # or bf16, fp16
    blocks: tuple[str, ...] = ()  # class names of the layers that fsdp shards one by one
    checkpoint_activations: bool = False  # compute them again in the backward pass: less memory
    compile: bool = False  # each block
    device: str | None = None  # cpu, cuda or cuda:1; the GPU of the rank's number, where it has one
    shuffle: bool = True  # another order each epoch, by the seed
    drop_last: bool = False  # leave out a last step of an epoch that is not full
    num_workers: int = 0  # processes that read samples; 0: a thread
    validate_every: int | str | None = "epoch"  # or steps
    early_stop: int | None = None  # validations in a row that do not improve
    best: str = "min"  # whether the lowest or the highest is best: min, max
    best_metric: str = "loss"  # of validations
    checkpoint_every: int | str | None = None  # steps, or a time like "30s"; None: at epochs' ends
    checkpoint_epochs: bool = True  # also at epochs' ends
    keep: int = 2  # of the newest checkpoints, besides the best
    async_checkpoints: bool = True  # written by a process beside the training
    resume: bool = True  # from the newest checkpoint in <out>/<run>; no: move the old run aside
    trust_checkpoint: bool = False  # load another user's run, and objects that need pickle
    seed: int = 42  # of the weights, the order of samples, and all random numbers
    out: str | None = None  # the job's output folder
    run: str = "run"  # all files are under <out>/<run>
    trackers: tuple[str, ...] = ()  # besides metrics.jsonl
    log_every: int = 10  # steps
    flops_per_token: float = 0.0  # for MFU
    flops_per_sample: float = 0.0  # for MFU

    def __post_init__(self) -> None:
        for name in _FROM_1_UP:
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise SpecError(
                    f"{name} is {value}", hint="give a number from 1 up, or leave it out"
                )
        if self.batch_size is not None and self.tokens_per_step is not None:
            raise SpecError(
                "batch_size and tokens_per_step are both given", hint="give one of them"
            )
        if isinstance(self.checkpoint_every, int) and self.checkpoint_every < 0:
            raise SpecError(
                f"checkpoint_every is {self.checkpoint_every}", hint="0 saves no checkpoints"
            )
        if self.log_every < 1 or self.keep < 1:
            raise SpecError("log_every and keep are numbers from 1 up", hint="leave them out")
        if not 0 <= self.lr < math.inf:
            raise SpecError(f"lr is {self.lr:g}", hint="a rate above 0, such as 3e-4")
        if not 0 <= self.weight_decay < math.inf:
            raise SpecError(
                f"weight_decay is {self.weight_decay:g}", hint="0 is none, 0.01 is usual"
            )
        if self.clip is not None and not self.clip >= 0:
            raise SpecError(f"clip is {self.clip:g}", hint="a norm such as 1.0; none does not clip")
        if self.warmup < 0:
            raise SpecError(f"warmup is {self.warmup}", hint="0 begins with the whole rate")
        parts = PurePosixPath(self.run.strip()).parts
        if not parts or ".." in parts or parts[0].startswith("/"):
            raise SpecError(
                f"run is {self.run!r}, which is no folder within the output folder",
                hint="a name such as lr-3e-4",
            )
        if self.best not in ("min", "max"):
            raise SpecError(
                f"best is {self.best!r}", hint='"min" or "max"; best_metric names the metric'
            )
        if isinstance(self.validate_every, str) and self.validate_every != "epoch":
            raise SpecError(
                f"validate_every is {self.validate_every!r}", hint='a number of steps, or "epoch"'
            )
        if isinstance(self.checkpoint_every, str):
            read_seconds(self.checkpoint_every)

    def __getattr__(self, name: str) -> Any:
        """Return a setting by itwinai's name."""
        if name in SETTINGS:
            return getattr(self, SETTINGS[name])
        raise AttributeError(f"{type(self).__name__} has no setting {name!r}")

    @property
    def samples_per_step(self) -> int:
        """The global batch, from samples or from tokens."""
        if self.tokens_per_step is None:
            return self.batch
        if not self.tokens_per_sample:
            raise SpecError(
                "tokens_per_step needs to know how many tokens a sample has",
                hint="give tokens_per_sample as well (packed data has one length), or give batch",
            )
        return max(1, self.tokens_per_step // self.tokens_per_sample)

    @property
    def saves(self) -> bool:
        """Whether there are checkpoints at all."""
        return self.checkpoint_every != 0

    @property
    def checkpoint_every_s(self) -> float | None:
        return (
            read_seconds(self.checkpoint_every) if isinstance(self.checkpoint_every, str) else None
        )


def read_seconds(text: str) -> float:
    """Seconds in "30s", "5m", "1h" or "250ms"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)", text.strip())
    if not match:
        raise SpecError(f"{text!r:.40} is not a time", hint='write it like "30s", "5m" or "1h"')
    return float(match[1]) * _UNITS_S[match[2]]
