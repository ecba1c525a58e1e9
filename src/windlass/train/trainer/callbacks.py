"""What is told while a training runs, and who listens: callbacks, among them the one that prints.

`TorchTrainer` calls every method on every rank, in the order the callbacks were given. A callback reads
the trainer; it asks it to end by `trainer.stop()`. No tracker and no checkpoint in here: both are the
trainer's own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windlass.train.trainer.torch_trainer import TorchTrainer
    from windlass.train.trainer.trainer_save import TrainResult


class Callback:
    """Override what is of interest."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of this callback: tensors, numbers, text, dicts and lists.

        It must be the same on every rank. Anything else is refused when the checkpoint is saved.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a state back. The trainer calls this after `on_start` when it resumes a checkpoint."""

    def on_start(self, trainer: TorchTrainer) -> None:
        """All parts are made, and a checkpoint is loaded if there was one."""

    def on_step(self, trainer: TorchTrainer, step: Any) -> None:
        """An optimizer step was made, and gradients are cleared; its loss may not be computed yet.

        `step` has index and sample_ids.
        """

    def on_log(self, trainer: TorchTrainer, step: int, metrics: Mapping[str, float]) -> None:
        """Numbers of the last `log_every` steps, told a step later; `step` counts the steps done by then."""

    def on_validation(self, trainer: TorchTrainer, metrics: Mapping[str, float]) -> None:
        """A validation has ended."""

    def on_checkpoint(self, trainer: TorchTrainer, step: int) -> None:
        """A checkpoint was begun; it is written beside the next steps."""

    def on_saved(self, trainer: TorchTrainer, step: int) -> None:
        """A checkpoint is whole: a restart would continue from this step. Called on rank 0 only."""

    def on_epoch(self, trainer: TorchTrainer, epoch: int) -> None:
        """An epoch has ended; they are counted from 1 here, as `epoch-1` is in the output folder."""

    def on_preempted(self, trainer: TorchTrainer, step: int) -> None:
        """The training was asked to end (SIGTERM), and does; the checkpoint of this step is whole."""

    def on_end(self, trainer: TorchTrainer, result: TrainResult) -> None:
        """The training has ended by itself."""

    def on_test(self, trainer: TorchTrainer, metrics: Mapping[str, float]) -> None:
        """After the end: metrics of the test data that `execute` was given."""


class ConsoleCallback(Callback):
    """Prints lines with tags that can be grepped.

    The tags are [DDP] [TRAIN] [VALID] [SAVED] [EPOCH] [PREEMPTED] [DONE] [TEST].
    """

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._loss: float | None = None

    def on_start(self, trainer: TorchTrainer) -> None:
        self._started_s = time.monotonic()
        context = trainer.context
        self._print(
            trainer,
            "DDP",
            {
                "world_size": context.world_size,
                "nodes": context.num_nodes,
                "device": context.device.type,
                "strategy": str(trainer.laid_out.shape),
                "precision": trainer.options.precision,
                "attempt": context.attempt,
                "step": f"{trainer.progress.step}/{trainer.total_steps}",
            },
        )

    def on_log(self, trainer: TorchTrainer, step: int, metrics: Mapping[str, float]) -> None:
        self._loss = metrics["loss"]
        names = ("loss", "grad_norm", "lr", "samples_per_s", "tokens_per_s", "mfu")
        shown = {name: metrics[name] for name in names if name in metrics}
        shown |= {name: metrics[name] for name in trainer.parts.log.metric_names}
        self._print(trainer, "TRAIN", {"step": f"{step}/{trainer.total_steps}", **shown})

    def on_validation(self, trainer: TorchTrainer, metrics: Mapping[str, float]) -> None:
        shown = {f"val_{name}": value for name, value in metrics.items()}
        self._print(trainer, "VALID", {"step": trainer.progress.step, **shown})

    def on_epoch(self, trainer: TorchTrainer, epoch: int) -> None:
        numbers: dict[str, Any] = {"epoch": epoch, "step": trainer.progress.step}
        if self._loss is not None:
            numbers["loss"] = self._loss
        validation = {f"val_{k}": v for k, v in trainer.progress.validation.items()}
        self._print(trainer, "EPOCH", {**numbers, **validation})

    def on_saved(self, trainer: TorchTrainer, step: int) -> None:
        self._print(trainer, "SAVED", {"step": step})

    def on_preempted(self, trainer: TorchTrainer, step: int) -> None:
        saved = {"out": trainer.parts.folder} if trainer.options.saves else {"checkpoint_every": 0}
        self._print(trainer, "PREEMPTED", {"step": step, **saved})

    def on_end(self, trainer: TorchTrainer, result: TrainResult) -> None:
        numbers: dict[str, Any] = {"steps": result.step, "epochs": result.epoch}
        if result.loss is not None:
            numbers["loss"] = result.loss
        if result.best is not None:
            numbers |= {"best": result.best, "best_step": result.best_step}
        seconds = time.monotonic() - self._started_s
        self._print(trainer, "DONE", {**numbers, "time_s": seconds, "out": result.folder})

    def on_test(self, trainer: TorchTrainer, metrics: Mapping[str, float]) -> None:
        shown = {f"test_{name}": value for name, value in metrics.items()}
        self._print(trainer, "TEST", {"step": trainer.progress.step, **shown})

    def _print(self, trainer: TorchTrainer, tag: str, numbers: Mapping[str, Any]) -> None:
        if trainer.context.is_main:
            text = " ".join(f"{name}={_show(value)}" for name, value in numbers.items())
            sys.stdout.write(f"[{tag}] {text}\n")
            sys.stdout.flush()


def _show(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
