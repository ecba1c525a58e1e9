"""Names of itwinai's TorchTrainer that mean the same here, and names that are refused with a hint.

The trainer reads them, and `trainer_options` before torch is imported. A test compares the tables with those
in docs/guides/from-itwinai.md. The names are those of itwinai 0.4.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from windlass.errors import SpecError

if TYPE_CHECKING:
    import torch

    from windlass.train.trainer.torch_trainer import TorchTrainer

# Methods to override or to call.
METHODS = {
    "create_model_loss_optimizer": "the same",
    "create_dataloaders": "the same, with or without itwinai's three arguments",
    "train_step": "returns the loss, or (loss, metrics); the trainer computes gradients",
    "validation_step": "the same",
    "test_step": "the same; validation_step unless overridden",
    "compute_metrics": "the same; returns values, which the caller returns to be logged",
    "set_epoch": "the same; steps self.lr_scheduler at the start of each epoch",
    "execute": "the same arguments; returns a TrainResult",
}
REFUSED_METHODS = {
    "train": "the trainer's loop runs the steps; use a callback's on_start and on_end",
    "train_epoch": "the trainer's loop runs the steps; override train_step or set_epoch, "
    "or write a callback",
    "validation_epoch": "override validation_step, or complete_metrics for metrics of all batches",
    "test_epoch": "override test_step, and pass a test dataset to execute()",
    "save_checkpoint": "the trainer saves automatically; see checkpoint_every and keep",
    "load_checkpoint": "the trainer resumes automatically; use the same out and run",
    "log": "call self.log() for metrics; a custom tracker (trackers=) receives all of them",
    "ray_report": "not supported (Ray Tune); a callback's on_validation receives the metrics",
    "get_default_distributed_kwargs": "set ddp_options on the class",
}

# Settings: of the constructor and of TrainingConfiguration.
SAME_SETTINGS = (
    *("config", "epochs", "model", "strategy", "metrics", "checkpoint_every"),
    *("loss", "optimizer"),
)
SETTINGS = {
    "random_seed": "seed",
    "optim_lr": "lr",
    "num_workers_dataloader": "num_workers",
    "shuffle_train": "shuffle",
    "run_name": "run",
    "checkpoints_location": "out",
}
PER_RANK = "batch_size"  # a separate setting, converted to batch
NO_EFFECT: Mapping[str, tuple[Any, ...]] = {  # values that match the behavior here
    "disable_tqdm": (True, False),
    "pin_gpu_memory": (True, False),  # memory is pinned for GPUs
    "shuffle_validation": (False,),
    "shuffle_test": (False,),
    "optim_weight_decay": (0, 0.0),
    "lr_scheduler": (None,),
    "test_every": (None,),
    "logger": (None,),
    "name": (None,),
    "from_checkpoint": (None,),
    "initial_best_validation_metric": ("inf",),
    "profiling_wait_epochs": (0,),
    "profiling_warmup_epochs": (0,),
    "measure_gpu_data": (False,),
    "enable_torch_profiling": (False,),
    "store_torch_profiling_traces": (False,),
    "measure_epoch_time": (False,),
    "ray_scaling_config": (None,),
    "ray_tune_config": (None,),
    "ray_run_config": (None,),
    "ray_search_space": (None,),
    "ray_torch_config": (None,),
    "ray_data_config": (None,),
    "time_ray": (False,),
    "fp16_allreduce": (False,),
    "use_adasum": (False,),
    "gradient_predivide_factor": (1.0,),
}
_PROFILER = "use torch.profiler in a callback; `windlass report` shows step times and memory"
_RAY = "not supported (Ray Tune); start one run per trial"
_HOROVOD = "not supported (Horovod); use ddp or fsdp"
_OPTIMIZER = (
    "pass a function as optimizer=, such as lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)"
)
REFUSED_SETTINGS = {
    "shuffle_validation": "validation reads every sample once, in the dataset's order",
    "shuffle_test": "the test data is read once, in its original order",
    "optim_momentum": _OPTIMIZER,
    "optim_betas": _OPTIMIZER,
    "optim_weight_decay": "weight_decay excludes biases and norms; pass a function as optimizer=",
    "lr_scheduler": "set self.lr_scheduler in create_model_loss_optimizer, or pass scheduler=",
    "lr_scheduler_step_size": "create the scheduler in create_model_loss_optimizer",
    "lr_scheduler_gamma": "create the scheduler in create_model_loss_optimizer",
    "dist_backend": "chosen automatically (gloo or NCCL); override with get_context(backend=)",
    "test_every": "pass test data to execute(), or call evaluate()",
    "logger": "pass trackers, such as ('mlflow',)",
    "name": "use run to name a run",
    "from_checkpoint": "a run resumes automatically; use the same out and run",
    "initial_best_validation_metric": 'pass best="min" or "max", and best_metric',
    "profiling_wait_epochs": _PROFILER,
    "profiling_warmup_epochs": _PROFILER,
    "measure_gpu_data": _PROFILER,
    "enable_torch_profiling": _PROFILER,
    "store_torch_profiling_traces": _PROFILER,
    "measure_epoch_time": "metrics.jsonl contains the time of the steps (elapsed_s)",
    "ray_scaling_config": "`windlass run --nodes` and `--procs` set the number of ranks",
    "ray_tune_config": _RAY,
    "ray_run_config": _RAY,
    "ray_search_space": _RAY,
    "ray_torch_config": _RAY,
    "ray_data_config": _RAY,
    "time_ray": _RAY,
    "fp16_allreduce": _HOROVOD,
    "use_adasum": _HOROVOD,
    "gradient_predivide_factor": _HOROVOD,
}

# Attributes to read.
ATTRIBUTES = {
    "config": "the settings; itwinai's setting names also work",
    "device": "the same",
    "strategy": "ranks, barrier, gather and broadcast; distributed() does not wrap the model",
    "model": "the same",
    "loss": "the same",
    "optimizer": "the same",
    "lr_scheduler": "the same; stepped by set_epoch",
    "metrics": "the same",
    "train_dataloader": "the same",
    "validation_dataloader": "the same",
    "test_dataloader": "the same",
    "current_epoch": "the same",
    "epochs": "the same",
    "run_name": "the same",
    "random_seed": "the same",
    "best_validation_metric": "the same; None before the first validation",
    "train_glob_step": "optimizer steps so far",
    "torch_rng": "None: torch's own generators are seeded and saved",
    "logger": "None: see trackers",
    "profiler": "None",
}
REFUSED_ATTRIBUTES = {
    "validation_glob_step": "use progress.step, which numbers validations",
    "test_glob_step": "test data is read once, after training",
    "checkpoints_location": "use parts.folder",
    "mlflow_train_run_id": "use parts.trackers.run_ids",
}
_ALWAYS_NONE = ("logger", "profiler")


def translate(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings under Windlass's names. Raise for itwinai settings that are not supported."""
    translated: dict[str, Any] = {}
    for key, value in values.items():
        if value in NO_EFFECT.get(key, ()):
            continue
        if key in REFUSED_SETTINGS:
            raise SpecError(
                f"itwinai's setting {key}={value!r:.40} is not supported",
                hint=REFUSED_SETTINGS[key],
            )
        translated[SETTINGS.get(key, key)] = value
    return translated


def refuse_overrides(kind: type, base: type) -> None:
    """Refuse a subclass that overrides a method which the trainer never calls."""
    for owner in kind.__mro__:
        for name, hint in REFUSED_METHODS.items() if owner is not base else ():
            if name in vars(owner) and getattr(kind, name) is not getattr(base, name, None):
                raise SpecError(
                    f"{owner.__name__} overrides {name}, which this trainer never calls", hint=hint
                )


def refuse_attributes(trainer: object) -> None:
    """Refuse attributes that no code reads, and methods that no code calls."""
    for name, hint in REFUSED_METHODS.items():
        if name in vars(trainer):
            raise SpecError(f"{name} is set, but this trainer never calls it", hint=hint)
    for name in _ALWAYS_NONE:
        if getattr(trainer, name, None) is not None:
            raise SpecError(
                f"{type(trainer).__name__} sets self.{name}, but no code uses it",
                hint=REFUSED_SETTINGS.get(name, _PROFILER),
            )


def explain_missing(name: str) -> str:
    """Return why a trainer has no such attribute, or an empty string if itwinai has none either."""
    return REFUSED_ATTRIBUTES.get(name) or REFUSED_METHODS.get(name, "")


class Strategy:
    """Attributes and methods of itwinai's strategies, based on the trainer's context."""

    is_initialized = True

    def __init__(self, trainer: TorchTrainer) -> None:
        self._trainer = trainer
        self._context = trainer.context

    @property
    def is_main_worker(self) -> bool:
        return self._context.is_main

    @property
    def is_distributed(self) -> bool:
        return self._context.world_size > 1

    def global_rank(self) -> int:
        return self._context.rank

    def local_rank(self) -> int:
        return self._context.local_rank

    def global_world_size(self) -> int:
        return self._context.world_size

    def local_world_size(self) -> int:
        return self._context.local_world_size

    def device(self) -> str:
        return str(self._context.device)

    def barrier(self) -> None:
        self._context.barrier()

    def allgather_obj(self, obj: Any) -> list[Any]:
        return self._context.gather(obj)

    def gather_obj(self, obj: Any, dst_rank: int = 0) -> list[Any] | None:
        gathered = self._context.gather(obj)
        return gathered if self._context.rank == dst_rank else None

    def gather(self, tensor: torch.Tensor, dst_rank: int = 0) -> list[torch.Tensor] | None:
        if self._context.world_size == 1:
            return [tensor]
        import torch
        import torch.distributed as dist

        gathered = [torch.empty_like(tensor) for _ in range(self._context.world_size)]
        dist.all_gather(gathered, tensor.detach().contiguous())
        return gathered if self._context.rank == dst_rank else None

    def broadcast_obj(self, obj: Any, src_rank: int = 0) -> Any:
        if src_rank != 0:
            return self._context.gather(obj)[src_rank]
        return self._context.broadcast(obj)

    def distributed(
        self, model: Any, optimizer: Any, lr_scheduler: Any = None, **options: Any
    ) -> tuple[Any, Any, Any]:
        """Return the parts unchanged. The trainer lays the model out later, with these DDP options."""
        if "config_params" in options or "compression" in options:
            raise SpecError(
                "options of DeepSpeed and Horovod are not supported by strategy.distributed",
                hint='use strategy="deepspeed" and zero_stage, or ddp or fsdp',
            )
        self._trainer.ddp_options = {**self._trainer.ddp_options, **options}
        return model, optimizer, lr_scheduler

    def create_dataloader(self, dataset: Any, batch_size: int = 1, **options: Any) -> Any:
        """Return a DataLoader that the trainer takes apart and splits over the ranks."""
        from torch.utils.data import DataLoader

        return DataLoader(dataset, batch_size=batch_size, **options)
