"""Parts of a training run, made in order: model, layout, optimizer, data, checkpoint, trackers, meters.

`TorchTrainer.fit` calls `set_up` once, and the loop needs nothing else. The order matters. Weights are drawn
from the same seed on every rank. Optimizers are made from parameters that are laid out. A checkpoint is
loaded into both.

Loaders are made from datasets, Loaders, or the settings of torch's DataLoaders. Ranks that share layers (tp)
read the same samples. A loader therefore gets its data rank and the number of data ranks, instead of the rank
and the world size.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)
from torch.utils.data.distributed import DistributedSampler

from windlass.errors import SpecError
from windlass.near_names import did_you_mean
from windlass.train.checkpoint.checkpoints import Checkpoints
from windlass.train.checkpoint.training_state import derive_rng
from windlass.train.data.loader import EvalLoader, Loader
from windlass.train.parallel.strategies import (
    PRECISIONS,
    LaidOutModel,
    copy_weights_of_first_rank,
    lay_out,
)
from windlass.train.trackers import TrackerGroup, make_trackers
from windlass.train.trainer.callbacks import STATES_ENTRY, CallbackStates
from windlass.train.trainer.itwinai_names import refuse_attributes
from windlass.train.trainer.meters import Meters
from windlass.train.trainer.optimizers import (
    check_further,
    check_optimizer,
    check_plateau,
    find_further,
    make_optimizer,
    make_scheduler,
    move_optimizer,
    name_parameters,
    own_parameters,
    refresh_rates,
)
from windlass.train.trainer.step_signals import StepSignals
from windlass.train.trainer.step_update import StepSums, StepUpdate
from windlass.train.trainer.trainer_log import TrainLog
from windlass.train.trainer.trainer_save import AttributeChecks, Saver

if TYPE_CHECKING:
    from windlass.train.trainer.torch_trainer import TorchTrainer


_WORKER_OPTIONS = ("worker_init_fn", "multiprocessing_context", "prefetch_factor", "timeout")
_HINT = (
    "pass the dataset itself, which the trainer shuffles and splits over the ranks, or an iterable dataset "
    "that yields samples in the order you want"
)
logger = logging.getLogger(__name__)

_LAST_SAVE_S = 120.0  # after an error, other ranks may have exited without writing their shares


def make_loader(data: Any, trainer: TorchTrainer) -> Loader:
    """Return the loader of the training data."""
    if isinstance(data, Loader):
        return data
    if data is None:
        raise SpecError("no training data given", hint="pass data=, or override create_dataloaders")
    options = trainer.options
    settings = _settings(trainer) | {
        "batch": options.samples_per_step,
        "shuffle": options.shuffle,
        "drop_last": options.drop_last,
    }
    if isinstance(data, DataLoader):
        settings |= _take_apart(data) | {
            "batch": (data.batch_size or 1) * trainer.shape.data_ranks,  # torch counts per rank
            "shuffle": _is_shuffled(data),
            "drop_last": data.drop_last,
        }
        data = data.dataset
    return Loader(data, micro_batch=options.micro_batch, seed=options.seed, **settings)


def make_eval_loader(data: Any, trainer: TorchTrainer) -> EvalLoader | None:
    """Return a loader that yields every sample once over all ranks, or None without data."""
    if data is None or isinstance(data, EvalLoader):
        return data
    if isinstance(data, Mapping):
        raise SpecError(
            f"the validation data is a {type(data).__name__} of {', '.join(map(str, data)) or 'nothing'}",
            hint="pass one dataset, and call trainer.evaluate() for others in a callback's on_validation",
        )
    options = trainer.options
    settings = _settings(trainer)
    share = max(1, options.samples_per_step // trainer.shape.data_ranks)
    micro_batch = options.micro_batch or share
    if isinstance(data, DataLoader):
        settings |= _take_apart(data)
        micro_batch, data = data.batch_size or 1, data.dataset
    return EvalLoader(data, micro_batch=micro_batch, **settings)


def _settings(trainer: TorchTrainer) -> dict[str, Any]:
    return {
        "rank": trainer.context.rank // trainer.shape.tp,
        "world_size": trainer.shape.data_ranks,
        "num_workers": trainer.options.num_workers,
        "collate": trainer.collate,
        "pin_memory": trainer.device.type == "cuda",
    }


def _take_apart(loader: Any) -> dict[str, Any]:
    """Return a DataLoader's settings, except for its batch size and its order."""
    if loader.batch_size is None:
        raise SpecError(
            "the trainer does not support a DataLoader that has a batch_sampler or no batch size",
            hint=_HINT,
        )
    if not isinstance(loader.dataset, IterableDataset) and not _takes_each_once(loader.sampler):
        raise SpecError(
            f"the trainer would not use the samples that {type(loader.sampler).__name__} chooses",
            hint=_HINT,
        )
    options = {name: getattr(loader, name) for name in _WORKER_OPTIONS}
    return {
        "num_workers": loader.num_workers,
        "collate": None if loader.collate_fn is default_collate else loader.collate_fn,
        "worker_options": options if loader.num_workers else {},
    }


def _takes_each_once(sampler: Any) -> bool:
    """Return whether an epoch has every sample once. Other samplers must not be ignored silently."""
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    return type(sampler) in (SequentialSampler, DistributedSampler)


def _is_shuffled(loader: Any) -> bool:
    """Return whether a DataLoader shuffles. The trainer then uses its own seeded order."""
    sampler = loader.sampler
    return bool(getattr(sampler, "shuffle", isinstance(sampler, RandomSampler)))


@dataclass(slots=True, kw_only=True)
class TrainerParts:
    """Parts of a training run that the loop uses."""

    laid_out: LaidOutModel
    update: StepUpdate
    saver: Saver
    signals: StepSignals
    trackers: TrackerGroup
    log: TrainLog
    folder: str
    best_metric: str
    resumed_from: int | None
    schedule_unit: str  # when the scheduler steps: after each "step", "epoch" or "validation"
    callback_states: CallbackStates
    attributes: AttributeChecks

    def read_best_metric(self, metrics: Mapping[str, float]) -> float:
        if not metrics:
            raise SpecError(
                "every batch of the validation data has weight 0",
                hint="check the labels of the data, and batch_weight",
            )
        if self.best_metric not in metrics:
            raise SpecError(
                f"validation has no metric {self.best_metric!r}",
                hint=did_you_mean(self.best_metric, tuple(metrics)),
            )
        return metrics[self.best_metric]

    def close(self, *, ok: bool) -> None:
        """Wait for a checkpoint that is being written, then end the trackers' runs."""
        self.saver.close(timeout_s=None if ok else _LAST_SAVE_S)
        self.trackers.close(ok=ok)


def set_up(trainer: TorchTrainer) -> None:
    """Make everything that `fit` needs, and load the newest checkpoint."""
    context, options = trainer.context, trainer.options
    laid_out = _lay_out(trainer)
    _create_dataloaders(trainer)
    trainer.train_dataloader = make_loader(trainer.train_dataloader, trainer)  # may be torch's
    trainer.validation_dataloader = make_eval_loader(trainer.validation_dataloader, trainer)
    _check_early_stop(trainer)
    trainer.total_steps = _count_steps(trainer)
    _warn_of_missing_validation(trainer)
    unit = _make_scheduler(trainer)
    derive_rng(
        seed=options.seed,
        step=0,
        rank=laid_out.data_rank,
        world_size=laid_out.shape.data_ranks,
    )
    scaler = torch.amp.GradScaler(context.device.type) if options.precision == "fp16" else None
    sums = StepSums(context)
    folder = find_folder(trainer)
    callback_states = CallbackStates(trainer.callbacks)
    attributes = AttributeChecks(trainer)
    callback_state = {STATES_ENTRY: callback_states} if callback_states else {}
    loader = trainer.train_dataloader
    saver = Saver(
        Checkpoints(
            folder,
            keep=options.keep,
            is_async=options.async_checkpoints,
            context=context,
            trust_checkpoint=options.trust_checkpoint,
        ),
        {**_state(trainer, laid_out, scaler), "sums": sums},
        added={**_further_state(trainer), **callback_state},
        options=options,
        context=context,
        shape=trainer.shape,
        order={"seed": options.seed, "batch": loader.batch, "num_samples": loader.num_samples},
        identity=trainer.identity(),  # called once, because it may read files
    )
    if (progress := saver.load()) is not None:
        trainer.progress = progress
        refresh_rates(trainer.scheduler)
        _warn_of_nothing_to_train(trainer)
    trackers = _start_trackers(trainer, folder, saver.run_ids)
    update = _update_type(trainer)(
        laid_out=laid_out,
        optimizer=trainer.optimizer,
        scheduler=trainer.scheduler if unit == "step" else None,
        context=context,
        sums=sums,
        clip=options.clip,
        scaler=scaler,
        of_loss=own_parameters(trainer.loss, laid_out.model),
    )
    trainer.parts = TrainerParts(
        laid_out=laid_out,
        update=update,
        saver=saver,
        signals=StepSignals(context, first_step=trainer.progress.step),
        trackers=trackers,
        log=TrainLog(trainer, sums, _make_meters(trainer), trackers),
        folder=folder,
        best_metric=options.best_metric,
        resumed_from=saver.resumed_from,
        schedule_unit=unit,
        callback_states=callback_states,
        attributes=attributes,
    )


def _update_type(trainer: TorchTrainer) -> type[StepUpdate]:
    if not trainer.shape.is_deepspeed:
        return StepUpdate
    from windlass.train.trainer.deepspeed_engine import DeepSpeedUpdate

    return DeepSpeedUpdate


def _lay_out(trainer: TorchTrainer) -> LaidOutModel:
    """Distribute the model across the ranks and create its optimizer."""
    options = trainer.options
    derive_rng(seed=options.seed, step=0, rank=0, world_size=0)  # the same on every rank
    trainer.create_model_loss_optimizer()
    refuse_attributes(trainer)
    if isinstance(trainer.loss, nn.Module):
        trainer.loss.to(trainer.device)
        if trainer.context.world_size > 1:
            copy_weights_of_first_rank(trainer.loss)
    names = name_parameters(trainer.optimizer, trainer.model, trainer.loss)
    further = find_further(trainer)
    _check_further_ranks(trainer, further)
    is_training = trainer.model.training
    if trainer.shape.is_deepspeed:
        return _lay_out_with_deepspeed(trainer)
    laid_out = lay_out(
        trainer.model,
        trainer.shape,
        trainer.context,
        precision=options.precision,
        blocks=options.blocks,
        checkpoint_activations=options.checkpoint_activations,
        compile_blocks=options.compile,
        ddp_options=trainer.ddp_options,
    )
    trainer.model = laid_out.module
    if isinstance(trainer.optimizer, Optimizer):
        move_optimizer(trainer.optimizer, names, laid_out.model, trainer.loss)
    else:
        of_loss = own_parameters(trainer.loss, laid_out.model)
        trainer.optimizer = make_optimizer(
            trainer.optimizer, laid_out.model, options, of_loss=of_loss
        )
    check_optimizer(trainer.optimizer)
    check_further(further, trainer.optimizer, laid_out.model, trainer.loss)
    if not is_training:  # from_pretrained returns such models; otherwise the user's modes are kept
        laid_out.module.train()
    return laid_out


def _check_further_ranks(trainer: TorchTrainer, further: Mapping[str, Any]) -> None:
    """Refuse further optimizers on several ranks, because no code averages their gradients."""
    names = [name for name, value in further.items() if isinstance(value, Optimizer)]
    if names and (trainer.context.world_size > 1 or trainer.shape.is_deepspeed):
        raise SpecError(
            f"{type(trainer).__name__} has a further optimizer, self.{names[0]}, but "
            f"{trainer.context.world_size} ranks do not average its gradients",
            hint="train with one rank, or use one optimizer with a parameter group for each part",
        )


def _make_scheduler(trainer: TorchTrainer) -> str:
    """Create trainer.scheduler. Return how often it steps: "step", "epoch" or "validation"."""
    options = trainer.options
    if trainer.lr_scheduler is not None:
        if trainer.scheduler != "constant" or options.warmup:
            raise SpecError(
                f"{type(trainer).__name__} sets self.lr_scheduler, but scheduler or warmup is given too",
                hint="self.lr_scheduler steps at the start of each epoch, scheduler after each step; use one",
            )
        trainer.scheduler, unit = trainer.lr_scheduler, "epoch"
        if isinstance(trainer.lr_scheduler, ReduceLROnPlateau):
            raise SpecError(
                "self.lr_scheduler is a ReduceLROnPlateau, which needs a metric",
                hint="set self.scheduler, which steps it after each validation",
            )
        return unit
    trainer.scheduler = make_scheduler(
        trainer.scheduler, trainer.optimizer, options, total=trainer.total_steps
    )
    if not isinstance(trainer.scheduler, ReduceLROnPlateau):
        return "step"
    validates = trainer.validation_dataloader is not None and options.validate_every is not None
    check_plateau(trainer.scheduler, options, validates=validates)
    return "validation"


def _further_state(trainer: TorchTrainer) -> dict[str, Any]:
    """Return state that earlier versions did not save, of the loss and of further optimizers."""
    further: dict[str, Any] = {
        f"own.{name}": value for name, value in find_further(trainer).items()
    }
    loss = trainer.loss
    if isinstance(loss, nn.Module) and loss.state_dict():
        further["loss"] = loss
    return further


def _lay_out_with_deepspeed(trainer: TorchTrainer) -> LaidOutModel:
    options = trainer.options
    for name in ("checkpoint_activations", "compile", "blocks"):
        if getattr(options, name):
            raise SpecError(
                f"strategy deepspeed does not support {name}",
                hint=f"use ddp or fsdp, or remove {name}",
            )
    from windlass.train.trainer.deepspeed_engine import lay_out_with_deepspeed, load_deepspeed

    load_deepspeed()
    if own_parameters(trainer.loss, trainer.model):
        raise SpecError(
            "the loss has parameters, which DeepSpeed's engine does not train",
            hint="make them part of the model, or use ddp or fsdp",
        )
    if not isinstance(trainer.optimizer, Optimizer):
        trainer.optimizer = make_optimizer(trainer.optimizer, trainer.model, trainer.options)
    laid_out = lay_out_with_deepspeed(
        trainer.model, trainer.optimizer, trainer.shape, trainer.context, trainer.options
    )
    check_optimizer(trainer.optimizer)
    trainer.model = laid_out.module
    laid_out.module.train()
    return laid_out


def _state(
    trainer: TorchTrainer, laid_out: LaidOutModel, scaler: torch.amp.GradScaler | None
) -> dict[str, Any]:
    if trainer.shape.is_deepspeed:
        from windlass.train.trainer.deepspeed_engine import DeepSpeedState

        engine = DeepSpeedState(laid_out.module, find_folder(trainer))
        return {"deepspeed": engine, "scheduler": trainer.scheduler}
    state = {
        "model": laid_out.model,
        "optimizer": trainer.optimizer,
        "scheduler": trainer.scheduler,
    }
    return state if scaler is None else {**state, "scaler": scaler}


def _create_dataloaders(trainer: TorchTrainer) -> None:
    """Call the user's method with itwinai's arguments if it has them."""
    if not inspect.signature(trainer.create_dataloaders).parameters:
        trainer.create_dataloaders()
        return
    trainer.create_dataloaders(
        trainer.train_dataset, trainer.validation_dataset, trainer.test_dataset
    )


def _check_early_stop(trainer: TorchTrainer) -> None:
    options = trainer.options
    if options.early_stop is None:
        return
    if trainer.validation_dataloader is None or options.validate_every is None:
        raise SpecError(
            f"early_stop={options.early_stop} requires validation, but none is configured",
            hint="pass validation data and validate_every, or remove early_stop",
        )


def _warn_of_missing_validation(trainer: TorchTrainer) -> None:
    """Warn if training ends before the first epoch does, because validation data is then never used."""
    is_wanted = trainer.validation_dataloader is not None
    if not is_wanted or trainer.options.validate_every != "epoch":
        return
    if not trainer.train_dataloader.has_length:
        return
    in_epoch, total = trainer.train_dataloader.steps_per_epoch, trainer.total_steps
    if total < in_epoch and trainer.context.is_main:
        logger.warning(
            "an epoch has %d steps but this training only %d, so it is not validated; hint: validate_every=N "
            "validates every N steps and at the end",
            *(in_epoch, total),
        )


def _warn_of_nothing_to_train(trainer: TorchTrainer) -> None:
    step = trainer.progress.step
    if step > trainer.total_steps and trainer.context.is_main:
        logger.warning(
            "this run is already at step %d, past its end at %d, so nothing is trained; hint: set more "
            "steps or epochs to continue, or another run name to start from scratch",
            *(step, trainer.total_steps),
        )


def _count_steps(trainer: TorchTrainer) -> int:
    """Return the number of optimizer steps. With both steps and epochs, the smaller one counts."""
    options = trainer.options
    if options.epochs is None and options.steps is not None:
        return options.steps
    by_epochs: int = (options.epochs or 1) * trainer.train_dataloader.steps_per_epoch
    return by_epochs if options.steps is None else min(by_epochs, options.steps)


def find_folder(trainer: TorchTrainer) -> str:
    """Return <out>/<run>, as an absolute path or as the given URL."""
    options = trainer.options
    if options.out is not None and "://" in options.out:
        return f"{options.out.rstrip('/')}/{options.run}"
    return str(Path(options.out or trainer.context.out).absolute() / options.run)


def _start_trackers(trainer: TorchTrainer, folder: str, run_ids: dict[str, str]) -> TrackerGroup:
    context, options = trainer.context, trainer.options
    local = context.out / options.run if "://" in folder else Path(folder)
    trackers = make_trackers(
        [*options.trackers, *trainer.other_trackers],
        folder=local,
        run=options.run,
        run_ids=run_ids,
        rank=context.rank,
        world_size=context.world_size,
        attempt=context.attempt,
    )
    params = {
        field.name: getattr(options, field.name)
        for field in dataclasses.fields(options)
        if getattr(options, field.name) is not None
    }
    trackers.start({**params, "shape": str(trainer.shape)})
    return trackers


def _make_meters(trainer: TorchTrainer) -> Meters:
    options = trainer.options
    return Meters(
        flops_per_token=options.flops_per_token,
        flops_per_sample=options.flops_per_sample,
        world_size=trainer.context.world_size,
        device=trainer.device,
        dtype=PRECISIONS[options.precision],
    )
