"""DeepSpeed as a strategy. Its engine holds the model, the optimizer and the gradients (ZeRO 1, 2 or 3).

The trainer uses this for strategy="deepspeed", instead of `strategies.lay_out`. Only this module imports
deepspeed. The engine writes its own state into `deepspeed/` beside the trainer's checkpoints, and each
checkpoint records the name of its state. Only the world size that wrote a state can load it. For other world
sizes, use fsdp.
"""

from __future__ import annotations

import contextlib
import shutil
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from windlass.errors import SpecError
from windlass.train.parallel.context import Context
from windlass.train.parallel.shape import Shape
from windlass.train.parallel.strategies import LaidOutModel
from windlass.train.trainer.step_update import StepUpdate
from windlass.train.trainer.trainer_options import TrainerOptions

FOLDER = "deepspeed"  # name of the subfolder in a run's folder
_KEPT_STATES = 2  # number of newest states to keep, because their checkpoints may be incomplete


def load_deepspeed() -> Any:
    """Return the library, or raise an error with the fix."""
    try:
        import deepspeed
    except ImportError as error:
        raise SpecError(
            f'strategy="deepspeed" needs DeepSpeed, which cannot be imported here: {error}',
            hint='run `pip install deepspeed`, or use strategy="fsdp", which needs nothing but torch',
        ) from error
    if not dist.is_initialized():
        raise SpecError(
            "DeepSpeed needs a process group, even for one process",
            hint="start it with `windlass run` or torchrun",
        )
    return deepspeed


def lay_out_with_deepspeed(
    model: nn.Module,
    optimizer: Optimizer,
    shape: Shape,
    context: Context,
    options: TrainerOptions,
) -> LaidOutModel:
    """Return the model in DeepSpeed's engine, which replaces it in forward passes."""
    deepspeed = load_deepspeed()
    if options.precision == "fp16":
        raise SpecError("strategy deepspeed does not support fp16", hint='use precision="bf16"')
    is_bf16 = options.precision == "bf16"
    engine, *_ = deepspeed.initialize(
        model=model.to(context.device),
        optimizer=optimizer,
        dist_init_required=False,
        config={
            # required but unused, because the trainer loads the data
            "train_micro_batch_size_per_gpu": options.micro_batch or 1,
            "gradient_accumulation_steps": 1,  # the trainer marks the last micro-batch
            "gradient_clipping": options.clip or 0.0,
            "zero_optimization": {"stage": options.zero_stage},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "torch_autocast": {"enabled": is_bf16, "dtype": "bfloat16"},
        },
    )
    return LaidOutModel(
        module=engine,
        model=engine.module,
        shape=shape,
        mesh=None,
        data_rank=context.rank,
        autocast=contextlib.nullcontext,
    )


class DeepSpeedUpdate(StepUpdate):
    """Optimizer step by DeepSpeed's engine, which clips, but does not skip steps."""

    def _backward(self, loss: torch.Tensor, *, is_last: bool) -> None:
        engine: Any = self._laid_out.module
        engine.set_gradient_accumulation_boundary(is_last)
        engine.backward(loss)
        engine.step()

    def _step_optimizer(self) -> torch.Tensor:
        norm = self._laid_out.module.get_global_grad_norm()
        return torch.as_tensor(0.0 if norm is None else norm, device=self._context.device).float()


class DeepSpeedState:
    """State of the engine in a checkpoint: the name of the state that the engine wrote itself."""

    def __init__(self, engine: Any, folder: str) -> None:
        if "://" in folder:
            raise SpecError(
                f"DeepSpeed cannot write to {folder}", hint="set out= to a folder, or use fsdp"
            )
        self._engine = engine
        self._folder = Path(folder) / FOLDER
        self._tags: deque[str] = deque(maxlen=_KEPT_STATES)

    def state_dict(self) -> dict[str, Any]:
        """Write the engine's state with all ranks, unless this step's is already written."""
        tag = f"step-{self._engine.global_steps}"
        if self._engine.global_steps and tag not in self._tags:
            self._engine.save_checkpoint(str(self._folder), tag=tag, save_latest=False)
            self._tags.append(tag)
            if dist.get_rank() == 0:
                self._remove_old()
        return {"tag": tag, "world_size": dist.get_world_size()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["world_size"] != dist.get_world_size():
            raise SpecError(
                f"DeepSpeed saved this run with {state['world_size']} ranks, "
                f"but there are {dist.get_world_size()} now",
                hint='resume with the same number, or train with strategy="fsdp", which supports any',
            )
        path, _ = self._engine.load_checkpoint(str(self._folder), tag=state["tag"])
        if path is None:
            raise SpecError(f"DeepSpeed's {self._folder / state['tag']} is missing")

    def _remove_old(self) -> None:
        """Remove states whose checkpoint no longer exists."""
        for path in self._folder.glob("step-*"):
            if path.name not in self._tags and not (self._folder.parent / path.name).exists():
                shutil.rmtree(path, ignore_errors=True)
