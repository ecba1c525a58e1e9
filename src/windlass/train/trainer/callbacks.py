"""Callbacks of a training: the base class, the one that prints, and their states in a checkpoint.

`TorchTrainer` calls every method on every rank, in the order the callbacks were given. A callback reads
the trainer, and asks it to end with `trainer.stop()`.

A callback takes part in checkpoints by overriding `state_dict` and `load_state_dict`: tensors and plain
values, which load without running code. `CallbackStates` keeps loaded states until `on_start` was called, so
that a callback may make its objects there and fill them afterwards.
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
STATES_ENTRY = "callbacks"  # in a checkpoint's state
_PLAIN = (bool, int, float, str, type(None))


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


class CallbackStates:
    """The states of all callbacks that have one, as one entry of a checkpoint."""

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
        """Return each callback's state by its class name; raise for what cannot be saved safely."""
        return {
            name: _check(name, "state_dict()", callback.state_dict())
            for name, callback in self._callbacks.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep what a checkpoint has until `deliver`."""
        self._loaded = dict(state)

    def deliver(self) -> None:
        """Give the loaded states to the callbacks; called once, after `on_start`."""
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            return
        for name, callback in self._callbacks.items():
            if name in loaded:
                callback.load_state_dict(_place_like(loaded.pop(name), _present(callback)))
            else:
                logger.warning("the checkpoint has no state of the callback %s", name)
        for name in loaded:
            logger.warning("the checkpoint has state of a callback %s, which is not here", name)


def _check(callback: str, place: str, value: Any) -> Any:
    """Return the value with plain dicts; raise if there is more than tensors and JSON in it."""
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
        hint="checkpoints hold tensors, numbers, text, and dicts (keys: text or whole numbers) and lists "
        "of these; convert it in state_dict() and back in load_state_dict()",
    )


def _present(callback: Callback) -> Any:
    """Return a callback's state before a load; None if it has none yet."""
    try:
        return callback.state_dict()
    except (AttributeError, KeyError, TypeError):  # made with the first step
        return None


def _place_like(loaded: Any, present: Any) -> Any:
    """Put loaded tensors where the callback's present ones are, on a device or in shards."""
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
