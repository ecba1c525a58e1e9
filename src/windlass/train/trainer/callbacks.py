"""Callbacks of a training run: the base class, the one that prints, and their states in a checkpoint.

`TorchTrainer` calls every method on every rank, in the order of the callbacks. A callback may read the
trainer, and stop it with `trainer.stop()`.

A callback overrides `state_dict` and `load_state_dict` to save state in checkpoints. States are tensors and
plain values, which load without running code. `CallbackStates` delivers loaded states after `on_start`, so
that a callback may make its objects there.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from windlass.errors import SpecError

if TYPE_CHECKING:
    from windlass.train.trainer.torch_trainer import TorchTrainer
    from windlass.train.trainer.trainer_save import TrainResult

logger = logging.getLogger(__name__)
STATES_ENTRY = "callbacks"  # entry in a checkpoint's state
_PLAIN = (bool, int, float, str, type(None))


class Callback:
    """Base class of callbacks. Override the methods for the events you need."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint saves: tensors, numbers, text, dicts and lists.

        It must be the same on every rank. Saving refuses other types.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state. The trainer calls this after `on_start` when it resumes from a checkpoint."""

    def on_start(self, trainer: TorchTrainer) -> None:
        """Handle the start, after all parts are made and a checkpoint, if any, is loaded."""

    def on_step(self, trainer: TorchTrainer, step: Any) -> None:
        """Handle an optimizer step. Gradients are cleared, but the loss may not be computed yet.

        `step` has the attributes `index` and `sample_ids`.
        """

    def on_log(self, trainer: TorchTrainer, step: int, metrics: Mapping[str, float]) -> None:
        """Handle the metrics of the last `log_every` steps, one step later. `step` is the last of them."""

    def on_validation(self, trainer: TorchTrainer, metrics: Mapping[str, float]) -> None:
        """Handle the end of a validation."""

    def on_checkpoint(self, trainer: TorchTrainer, step: int) -> None:
        """Handle the start of a checkpoint, which is written during the next steps."""

    def on_saved(self, trainer: TorchTrainer, step: int) -> None:
        """Handle a completed checkpoint, from which a restart would resume. Called on rank 0 only."""

    def on_epoch(self, trainer: TorchTrainer, epoch: int) -> None:
        """Handle the end of an epoch. Epochs count from 1 here, like `epoch-1` in the output folder."""

    def on_preempted(self, trainer: TorchTrainer, step: int) -> None:
        """Handle the stop after a SIGTERM. The checkpoint of this step is complete."""

    def on_end(self, trainer: TorchTrainer, result: TrainResult) -> None:
        """Handle the regular end of the training run."""

    def on_test(self, trainer: TorchTrainer, metrics: Mapping[str, float]) -> None:
        """Handle the metrics of the test data passed to `execute`, after the end."""


class ConsoleCallback(Callback):
    """Callback that prints lines with tags for grep.

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


class CallbackStates:
    """The states of all callbacks that override `state_dict`, as one entry of a checkpoint."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks: dict[str, Callback] = {}
        for callback in callbacks:
            read = getattr(type(callback), "state_dict", Callback.state_dict)
            if read is not Callback.state_dict:
                kind = type(callback).__name__
                same = sum(type(one).__name__ == kind for one in self._callbacks.values())
                self._callbacks[f"{kind}-{same + 1}" if same else kind] = callback
        self._loaded: dict[str, Any] | None = None

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def state_dict(self) -> dict[str, Any]:
        """Return each callback's state by its class name. Raise if a state cannot be saved safely."""
        return {
            name: _check(name, "state_dict()", callback.state_dict())
            for name, callback in self._callbacks.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep a checkpoint's states until `deliver`."""
        self._loaded = dict(state)

    def deliver(self) -> None:
        """Pass the loaded states to the callbacks. Called once, after `on_start`."""
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            return
        for name, callback in self._callbacks.items():
            if name in loaded:
                callback.load_state_dict(_place_like(loaded.pop(name), _present(callback)))
            else:
                logger.warning("the checkpoint has no state for the callback %s", name)
        for name in loaded:
            logger.warning(
                "the checkpoint has state for a callback %s, which is not in this training",
                name,
            )


def _check(callback: str, place: str, value: Any) -> Any:
    """Return the value with plain dicts. Raise if it contains more than tensors and JSON."""
    if isinstance(value, _PLAIN) and type(value) in _PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, Mapping) and all(type(key) in (str, int) for key in value):
        return {key: _check(callback, f"{place}[{key!r}]", item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(
            _check(callback, f"{place}[{index}]", item) for index, item in enumerate(value)
        )
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    raise SpecError(
        f"the state of the callback {callback} cannot be saved: {place} is a {kind}",
        hint="return only tensors, numbers, strings, and lists or dicts of these, with str or int keys; "
        "convert other types in state_dict() and back in load_state_dict()",
    )


def _present(callback: Callback) -> Any:
    """Return a callback's state before loading, or None if it has none yet."""
    try:
        return callback.state_dict()
    except (AttributeError, KeyError, TypeError):  # it makes its objects in the first step
        return None


def _place_like(loaded: Any, present: Any) -> Any:
    """Put loaded tensors on the device, or into the shards, of the callback's present tensors."""
    if isinstance(loaded, torch.Tensor) and isinstance(present, torch.Tensor):
        if loaded.shape != present.shape:
            return loaded
        whole = loaded.to(present.device)
        if not isinstance(present, DTensor):
            return whole
        return distribute_tensor(whole, present.device_mesh, present.placements, src_data_rank=None)
    if isinstance(loaded, dict) and isinstance(present, Mapping):
        return {key: _place_like(item, present.get(key)) for key, item in loaded.items()}
    is_list = isinstance(loaded, list | tuple) and isinstance(present, list | tuple)
    if is_list and len(loaded) == len(present):
        return type(loaded)(map(_place_like, loaded, present))
    return loaded
