"""DeepSpeed as a strategy: its engine holds the model, the optimizer and the gradients (ZeRO 1, 2 or 3).

Used by the trainer for strategy="deepspeed", in place of `strategies.lay_out`; deepspeed is imported here
and nowhere else. The engine writes its state itself, into `deepspeed/` beside our checkpoints, which say
which one is whole; it can be loaded at the world size that wrote it only. For another one, use fsdp.
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

FOLDER = "deepspeed"  # in a run's folder
_HELD = 2  # newest states, whose checkpoints may not be whole yet


def load_deepspeed() -> Any:
    """The library, or an error that says what to do."""
    try:
        import deepspeed
    except ImportError as error:
        raise SpecError(
            f'strategy="deepspeed" needs DeepSpeed, which cannot be imported here: {error}',
            hint='pip install deepspeed, or use strategy="fsdp", which needs nothing but torch',
        ) from error
    if not dist.is_initialized():
        raise SpecError(
            "DeepSpeed needs a process group, also for one process",
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
    """The model in DeepSpeed's engine, which is called in its place."""
    deepspeed = load_deepspeed()
    if options.precision == "fp16":
        raise SpecError("fp16 does not go with deepspeed here", hint='use precision="bf16"')
    is_bf16 = options.precision == "bf16"
    engine, *_ = deepspeed.initialize(
        model=model.to(context.device),
        optimizer=optimizer,
        dist_init_required=False,
        config={
            "train_micro_batch_size_per_gpu": options.micro_batch or 1,  # not used: data are ours
            "gradient_accumulation_steps": 1,  # the trainer says where a step ends
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
    """One optimizer step by DeepSpeed's engine. It does not leave steps out: it clips, and steps."""

    def _backward(self, loss: torch.Tensor, *, is_last: bool) -> None:
        engine: Any = self._laid_out.module
        engine.set_gradient_accumulation_boundary(is_last)
        engine.backward(loss)
        engine.step()

    def _step_optimizer(self) -> torch.Tensor:
        norm = self._laid_out.module.get_global_grad_norm()
        return torch.as_tensor(0.0 if norm is None else norm, device=self._context.device).float()


class DeepSpeedState:
    """What a checkpoint holds of the engine: the name of the state that it has written by itself."""

    def __init__(self, engine: Any, folder: str) -> None:
        if "://" in folder:
            raise SpecError(
                f"DeepSpeed cannot write to {folder}", hint="give out= a folder, or use fsdp"
            )
        self._engine = engine
        self._folder = Path(folder) / FOLDER
        self._tags: deque[str] = deque(maxlen=_HELD)

    def state_dict(self) -> dict[str, Any]:
        """Write the engine's state, all ranks together, unless this step's is written."""
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
                f"and there are {dist.get_world_size()}",
                hint='go on with as many, or train with strategy="fsdp", which fits any number',
            )
        path, _ = self._engine.load_checkpoint(str(self._folder), tag=state["tag"])
        if path is None:
            raise SpecError(f"DeepSpeed's {self._folder / state['tag']} is missing")

    def _remove_old(self) -> None:
        """States whose checkpoint is gone."""
        for path in self._folder.glob("step-*"):
            if path.name not in self._tags and not (self._folder.parent / path.name).exists():
                shutil.rmtree(path, ignore_errors=True)
