"""Trainer that trains a model on one or many processes and resumes exactly where it stopped.

    trainer = TorchTrainer(model=make_model, data=dataset, loss="cross_entropy", epochs=3, batch=256)
    result = trainer.fit()

`fit` makes the parts (`trainer_setup`), then runs the loop below. Users of itwinai's TorchTrainer subclass it
and override `create_model_loss_optimizer`, `create_dataloaders`, `train_step` or `validation_step`.
`step_update` computes a step. `trainer_log` decides when to log it.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from windlass.errors import SpecError
from windlass.train.parallel.context import Context, get_context
from windlass.train.parallel.shape import Shape, read_shape
from windlass.train.parallel.strategies import LaidOutModel
from windlass.train.trainer.callbacks import Callback, ConsoleCallback
from windlass.train.trainer.evaluation import evaluate, evaluation_mode, read_metrics
from windlass.train.trainer.itwinai_names import Strategy, explain_missing, refuse_overrides
from windlass.train.trainer.optimizers import find_further, make_loss, make_model, move_to
from windlass.train.trainer.step_signals import END, SAVE, STOP
from windlass.train.trainer.trainer_options import Config, TrainerOptions, read_options
from windlass.train.trainer.trainer_save import TrainProgress, TrainResult
from windlass.train.trainer.trainer_setup import TrainerParts, make_eval_loader, make_loader, set_up

PREEMPTED_EXIT_CODE = 143  # exit code of a process that SIGTERM ended


class Preempted(SystemExit):
    """Exit after a request to stop. With checkpoints enabled, the next attempt resumes from this step."""

    def __init__(self, step: int, *, is_saved: bool) -> None:
        super().__init__(PREEMPTED_EXIT_CODE)
        self.step, self.is_saved = step, is_saved

    def __str__(self) -> str:
        if not self.is_saved:
            return f"step {self.step} is lost because checkpoint_every=0 disables checkpoints"
        return f"saved step {self.step}, to resume from it"


class TorchTrainer:
    """A training run. Keywords are settings (see TrainerOptions), or parts, which may also be factories."""

    options_type: type[TrainerOptions] = TrainerOptions
    # function of a batch's data that returns its weight as a tensor, such as its number of tokens
    # (default: its number of samples)
    batch_weight: Any = None
    lr_scheduler: Any = None  # stepped at the start of each epoch, as in itwinai
    torch_rng: Any = None
    logger: Any = None
    profiler: Any = None
    # keywords for DistributedDataParallel, such as find_unused_parameters
    ddp_options: Mapping[str, Any] = {}

    def __init__(
        self,
        config: Config | None = None,
        *,
        model: nn.Module | Callable[[], nn.Module] | None = None,
        data: Any = None,
        validation: Any = None,
        loss: Callable[..., Any] | str | None = None,
        optimizer: Any = None,
        scheduler: Any = None,
        metrics: Mapping[str, Callable[[Any, Any], Any]] | None = None,
        batch_weight: Callable[[Any], torch.Tensor] | None = None,
        callbacks: Sequence[Callback] | None = None,
        trackers: Sequence[Any] | str = (),
        collate: Callable[[list[Any]], Any] | None = None,
        **settings: Any,
    ) -> None:
        """Validate the settings. Nothing is built and no data is read until `fit`.

        config: a dict, a YAML or JSON file, or command-line flags (sys.argv[1:]). It overrides keywords.
        data: a dataset or a Loader.
        validation: a dataset.
        loss: a name, or a function of (output, target) that returns a mean. None: the model returns its loss.
        optimizer: a name, a class, a function of the parameters, or an optimizer.
        scheduler: a name, a function of the optimizer, or a scheduler. It steps after each optimizer step.
        metrics: functions of (output, target) by name. Each returns a mean over a validation batch.
        batch_weight: a function that returns the weight of a batch (default: its number of samples).
        callbacks: replace the default callback, which prints.
        trackers: names or trackers, in addition to metrics.jsonl.
        collate: a function that makes a batch from a list of samples.
        """
        by_name = {"loss": loss, "optimizer": optimizer, "scheduler": scheduler}
        named: dict[str, Any] = {
            key: value for key, value in by_name.items() if isinstance(value, str)
        }
        names = trackers.split(",") if isinstance(trackers, str) else trackers
        named["trackers"] = tuple(name for name in names if isinstance(name, str))
        refuse_overrides(type(self), TorchTrainer)
        self.options = read_options(self.options_type, {**settings, **named}, config)
        self.context: Context = get_context(device=self.options.device)
        self.shape: Shape = read_shape(
            self.options.strategy,
            world_size=self.context.world_size,
            local_world_size=self.context.local_world_size,
        )
        if self.options.batch_size is not None:
            batch = self.options.batch_size * self.shape.data_ranks
            self.options = dataclasses.replace(self.options, batch=batch)
        self.model: Any = model
        self.loss: Any = self.options.loss if loss is None or isinstance(loss, str) else loss
        self.optimizer: Any = (
            self.options.optimizer if isinstance(optimizer, str | None) else optimizer
        )
        self.scheduler: Any = (
            self.options.scheduler if isinstance(scheduler, str | None) else scheduler
        )
        self.metrics = dict(metrics or {})
        if batch_weight is not None:
            self.batch_weight = batch_weight
        self.callbacks = [ConsoleCallback()] if callbacks is None else list(callbacks)
        self.other_trackers = [name for name in names if not isinstance(name, str)]
        self.collate = collate
        self.train_dataset, self.validation_dataset = data, validation
        self.test_dataset: Any = None
        self.train_dataloader: Any = None
        self.validation_dataloader: Any = None
        self.test_dataloader: Any = None
        self.strategy = Strategy(self)
        self.progress = TrainProgress()
        self.total_steps = 0
        self.parts: TrainerParts
        self._is_early_stop = False
        self._is_epoch_begun = False

    @property
    def config(self) -> TrainerOptions:
        """The settings, under itwinai's name."""
        return self.options

    @property
    def device(self) -> torch.device:
        return self.context.device

    @property
    def current_epoch(self) -> int:
        """Number of the current epoch, from 0, under itwinai's name."""
        return self.progress.epoch

    @property
    def epochs(self) -> int | None:
        return self.options.epochs

    @property
    def run_name(self) -> str:
        return self.options.run

    @property
    def random_seed(self) -> int:
        return self.options.seed

    @property
    def best_validation_metric(self) -> float | None:
        return self.progress.best

    @property
    def train_glob_step(self) -> int:
        return self.progress.step

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError. Attributes that only itwinai's trainer has get a hint."""
        why = explain_missing(name)
        raise AttributeError(
            f"{type(self).__name__} has no attribute {name!r}" + (f"; hint: {why}" if why else "")
        )

    @property
    def laid_out(self) -> LaidOutModel:
        return self.parts.laid_out

    # Methods that users override.

    def create_model_loss_optimizer(self) -> None:
        """Set self.model and self.loss.

        An override may also set self.optimizer and self.scheduler, or leave them as functions.
        """
        self.model = make_model(self.model)
        self.loss = make_loss(self.loss)

    def create_dataloaders(self, *args: Any, **kwargs: Any) -> None:
        """Set self.train_dataloader and self.validation_dataloader.

        An override takes no arguments, or itwinai's train_dataset, validation_dataset and test_dataset.
        """
        names = ("train_dataset", "validation_dataset", "test_dataset")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        given = {name: value for name, value in given.items() if value is not None}
        self.train_dataloader = make_loader(given.get(names[0], self.train_dataset), self)
        self.validation_dataloader = make_eval_loader(
            given.get(names[1], self.validation_dataset), self
        )

    def train_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the mean loss of a micro-batch. The trainer computes the gradients and steps."""
        del batch_idx  # used by overrides
        return self._forward(batch)[0]

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the mean loss of a batch, or (loss, metrics)."""
        loss, output, target = self._forward(batch)
        metrics = self.compute_metrics(
            true=target,
            pred=output,
            logger_step=self.progress.step,
            batch_idx=batch_idx,
            stage="validation",
        )
        return loss, metrics

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the same as `validation_step`, for the test data passed to `execute`."""
        return self.validation_step(batch, batch_idx)

    def compute_metrics(
        self,
        true: Any,
        pred: Any,
        logger_step: int = 0,
        batch_idx: int | None = None,
        stage: str = "train",
    ) -> dict[str, Any]:
        """Return the value of each of `metrics` for a batch. Metrics that a step returns are logged."""
        del logger_step, batch_idx, stage
        return {name: metric(pred, true) for name, metric in self.metrics.items()}

    def set_epoch(self) -> None:
        """Start the epoch `current_epoch` by stepping self.lr_scheduler, if it is set.

        The trainer calls this before each epoch's first step, and after a resume within an epoch.
        """
        if self.lr_scheduler is None or self._is_epoch_begun:
            return
        with warnings.catch_warnings():  # itwinai skips the schedule's first value too
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step\\(\\)` before")
            self.lr_scheduler.step()

    def complete_metrics(self, metrics: dict[str, float]) -> dict[str, float]:
        """Return the metrics of a whole validation. Override it to add derived ones, such as perplexity."""
        return metrics

    def identity(self) -> dict[str, str]:
        """Return values that a checkpoint must match to be resumed. The keys appear in error messages."""
        return {"the optimizer": type(self.optimizer).__name__}

    def _forward(self, batch: Any) -> tuple[Any, Any, Any]:
        if self.loss is None:  # the model returns its loss
            output = self.model(**batch) if isinstance(batch, Mapping) else self.model(batch)
            loss = (
                output["loss"] if isinstance(output, Mapping) else getattr(output, "loss", output)
            )
            return loss, output, batch
        inputs, target = batch
        output = self.model(inputs)
        return self.loss(output, target), output, target

    # Methods that users call.

    def fit(self) -> TrainResult:
        """Train to the end and return the result, which is the same on every rank.

        Resumes from the newest checkpoint if there is one.
        """
        set_up(self)
        try:
            self._notify("on_start")
            self.parts.attributes.refuse_late_parts()
            self.parts.callback_states.deliver()
            if not self._is_early_stop_due:  # true when a run that stopped early is started again
                self._train()
        except BaseException as error:
            self.parts.close(ok=isinstance(error, Preempted))
            raise
        self.parts.log.flush()
        self.parts.close(ok=True)
        self._report_saved()
        self.context.preemption.end_reading()
        result = self._result()
        self._notify("on_end", result)
        return result

    def execute(
        self, train_dataset: Any = None, validation_dataset: Any = None, test_dataset: Any = None
    ) -> TrainResult:
        """Run `fit` under itwinai's name. Datasets given here replace those of the constructor."""
        if train_dataset is not None:
            self.train_dataset = train_dataset
        if validation_dataset is not None:
            self.validation_dataset = validation_dataset
        self.test_dataset = test_dataset
        result = self.fit()
        test = test_dataset if self.test_dataloader is None else self.test_dataloader
        if test is None:
            return result
        result = dataclasses.replace(result, test=self._evaluate(test, self.test_step))
        self._notify("on_test", result.test)
        return result

    def stop(self) -> None:
        """Stop with a checkpoint after one of the next steps, on every rank."""
        self.parts.signals.propose(END, self.progress.step - 1)

    def share_buffers(self) -> None:
        """Copy rank 0's buffers of the model and the loss to every rank. Call it on every rank."""
        self.laid_out.share_buffers()
        if isinstance(self.loss, nn.Module):
            self.laid_out.share_buffers(self.loss)

    def evaluate(self, data: Any) -> dict[str, float]:
        """Return the model's metrics over a dataset or an EvalLoader. Call it on every rank, after `fit`."""
        return self._evaluate(data, self.validation_step)

    def log(
        self,
        item: Any,
        identifier: str,
        kind: str = "metric",
        step: int | None = None,
        batch_idx: int | None = None,
    ) -> None:
        """Send a number from rank 0 to the trackers, as in itwinai's trainers."""
        del batch_idx
        if kind != "metric":
            raise SpecError(
                f"self.log was given {identifier!r} of kind {kind!r}",
                hint="trackers accept only metrics; write other items to files in trainer.parts.folder",
            )
        self.parts.trackers.log(
            {identifier: item}, step=self.progress.step if step is None else step
        )

    def _evaluate(self, data: Any, step: Callable[[Any, int], Any]) -> dict[str, float]:
        loader = make_eval_loader(data, self) or ()
        self.share_buffers()
        wrapped, self.model = self.model, self.laid_out.model
        try:
            with evaluation_mode(self.laid_out.model), self.laid_out.autocast():
                batches = ((move_to(b.data, self.device), b.weight) for b in loader)
                metrics = evaluate(batches, step, device=self.device, weigh=self.batch_weight)
        finally:
            self.model = wrapped
            self.laid_out.reshard()
        return self.complete_metrics(metrics)

    # The loop. Each iteration is one optimizer step on every rank.

    def _train(self) -> None:
        parts = self.parts
        if not self._is_at_end:
            self._is_epoch_begun = self._is_within_epoch
            self.set_epoch()
            self._is_epoch_begun = False
        for step in self._steps():
            batches = [(move_to(b.data, self.device), b.weight) for b in step.micro_batches]
            parts.update.run(
                batches, step.global_samples, train_step=self._loss, weigh=self.batch_weight
            )
            self.progress.step = step.index + 1
            self.progress.epoch = step.epoch + step.is_last_of_epoch
            parts.log.step_done(step)
            self._notify("on_step", step)
            self._propose(step.index)
            signals = parts.signals.check(step.index)
            is_best = self._is_validation_due(step) and self._validate()
            is_last = self._is_early_stop or bool(signals & {STOP, END}) or self._is_at_end
            if is_best or is_last or SAVE in signals or self._is_save_due(step):
                self._save(step, is_best=is_best, block=is_last)
            if step.is_last_of_epoch:
                self._notify("on_epoch", self.progress.epoch)
            if STOP in signals:
                self._notify("on_preempted", self.progress.step)
                raise Preempted(self.progress.step, is_saved=self.options.saves)
            if is_last:
                break
            if step.is_last_of_epoch:
                self.set_epoch()

    def _steps(self) -> Iterator[Any]:
        """Yield the remaining steps and log how long the data of each took."""
        first = self.progress.step
        steps = self.train_dataloader.steps(start=first, stop=self.total_steps)
        while True:
            began_s = time.perf_counter()
            if (step := next(steps, None)) is None:
                return
            self.parts.log.data_wait_s = time.perf_counter() - began_s
            yield step
            if self.progress.step == first + 1:
                self.parts.attributes.warn_of_modules()
                self.parts.saver.prepare()

    def _loss(self, batch: Any, batch_idx: int) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the loss of a micro-batch and the other metrics that `train_step` returned."""
        returned = self.train_step(batch, batch_idx)
        if batch_idx == 0 and self.progress.step == (self.parts.resumed_from or 0):
            self._refuse_gradients()
        metrics: dict[str, Any] = {}
        if isinstance(returned, torch.Tensor):
            loss: Any = returned
        else:
            metrics = read_metrics(returned)
            loss = metrics.pop("loss", None)
            if isinstance(returned, tuple) and len(returned) == 2:
                loss = returned[0]  # the metrics may also contain a detached "loss"
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            shown = f"of {list(loss.shape)}" if isinstance(loss, torch.Tensor) else f"{loss!r:.40}"
            raise SpecError(
                f"{type(self).__name__}.train_step returned a loss {shown}",
                hint="return a tensor with one number, the mean over the batch, or (loss, metrics)",
            )
        return (loss.reshape(()) if loss.dim() else loss), metrics

    def _refuse_gradients(self) -> None:
        """Refuse a `train_step` that computed gradients itself.

        Steps of itwinai's trainer also update the weights. Here the trainer does that once for all ranks.
        Parameters of a further optimizer are exempt, because the user steps them.
        """
        others = {
            parameter
            for optimizer in find_further(self).values()
            if isinstance(optimizer, Optimizer)
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        own = (p for p in self.laid_out.model.parameters() if p not in others)
        if any(p.grad is not None for p in own):
            raise SpecError(
                f"{type(self).__name__}.train_step computed gradients itself",
                hint="return the loss without calling zero_grad, backward or step; the trainer calls them",
            )

    @property
    def _is_within_epoch(self) -> bool:
        """True if a resumed training is partway through an epoch."""
        loader, step = self.train_dataloader, self.progress.step
        if not loader.has_length:
            return bool(step)
        return bool(step % loader.steps_per_epoch)

    @property
    def _is_at_end(self) -> bool:
        return self.progress.step >= self.total_steps

    @property
    def _is_early_stop_due(self) -> bool:
        limit = self.options.early_stop
        return limit is not None and self.progress.bad_validations >= limit

    def _propose(self, step: int) -> None:
        self._report_saved()
        if self.context.preemption.is_noticed:
            self.parts.signals.propose(STOP, step)
        if self.context.is_main and self.parts.saver.is_time_up:
            self.parts.signals.propose(SAVE, step)

    def _is_validation_due(self, step: Any) -> bool:
        every = self.options.validate_every
        if self.validation_dataloader is None or every is None:
            return False
        if isinstance(every, str):
            return bool(step.is_last_of_epoch)
        return self.progress.step % every == 0 or self._is_at_end

    def _is_save_due(self, step: Any) -> bool:
        every = self.options.checkpoint_every
        if every == 0:
            return False
        is_epoch = step.is_last_of_epoch and self.options.checkpoint_epochs
        return is_epoch or (isinstance(every, int) and self.progress.step % every == 0)

    def _save(self, step: Any, *, is_best: bool, block: bool) -> None:
        """Save after this step. `block` waits until the checkpoint is complete, before the process ends."""
        parts, progress = self.parts, self.progress
        if not self.options.saves:
            return
        if parts.saver.saved_step != progress.step:
            parts.attributes.refuse_late_parts()
            parts.attributes.warn_of_modules()
            parts.log.settle()
            self.share_buffers()
            epoch = progress.epoch if step.is_last_of_epoch else None
            parts.saver.save(progress, epoch=epoch, run_ids=parts.trackers.run_ids, block=block)
            self._notify("on_checkpoint", progress.step)
        if is_best and progress.best is not None:
            parts.saver.mark_best(progress.step, progress.best)
        parts.log.pause_done()

    def _report_saved(self) -> None:
        if (step := self.parts.saver.take_safe_step()) is not None:
            self._notify("on_saved", step)

    def _validate(self) -> bool:
        """Validate and return whether the result is the best so far.

        Also flags an early stop after too many validations without improvement.
        """
        metrics = self.evaluate(self.validation_dataloader)
        self.progress.validation = metrics
        self.parts.log.validation_done(metrics)
        self._notify("on_validation", metrics)
        value = self.parts.read_best_metric(metrics)
        if self.parts.schedule_unit == "validation":
            self.scheduler.step(value)
        is_best = self.progress.judge(value, mode=self.options.best)
        self._is_early_stop = self._is_early_stop_due
        return is_best

    def _notify(self, event: str, *values: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self, *values)

    def _result(self) -> TrainResult:
        progress = self.progress
        return TrainResult(
            step=progress.step,
            epoch=progress.epoch,
            loss=self.parts.log.loss,
            validation=progress.validation,
            best=progress.best,
            best_step=progress.best_step,
            num_skipped=progress.num_skipped,
            resumed_from=self.parts.resumed_from,
            folder=self.parts.folder,
            is_stopped_early=not self._is_at_end,
        )
