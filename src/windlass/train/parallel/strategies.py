"""Strategies: functions that lay a model out over the ranks of a mesh.

The trainer and the recipes call `lay_out` with a `Shape`. Each axis has its own function, so that a
hand-written loop can call `apply_ddp` or `apply_fsdp` itself. Make optimizers afterwards, from the parameters
of the returned model. `shape` reads the shape of the world. This module has no training loop.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from windlass.errors import SpecError
from windlass.near_names import did_you_mean
from windlass.train.parallel.context import Context
from windlass.train.parallel.shape import Shape

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidOutModel:
    """Model laid out over the ranks of a job, as the loop uses it."""

    module: nn.Module  # the model or its wrapper, for forward passes
    model: nn.Module  # the model, whose parameters are trained and saved
    shape: Shape
    mesh: DeviceMesh | None
    data_rank: int  # index among the ranks that read different samples
    autocast: Callable[[], AbstractContextManager[Any]]

    def accumulate(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Return a context for one micro-batch. Gradients are averaged over ranks only after the last one."""
        if isinstance(self.module, DistributedDataParallel):
            return contextlib.nullcontext() if is_last else self.module.no_sync()
        if isinstance(self.model, FSDPModule) and self.shape.dp > 1:
            # Shards are reduced every time, to keep whole gradients out of memory. Replicas are reduced once.
            self.model.set_requires_all_reduce(is_last)
        return contextlib.nullcontext()

    def share_buffers(self, module: nn.Module | None = None) -> None:
        """Copy rank 0's saved buffers to every rank. BatchNorm's statistics differ until then.

        module: owner of the buffers (default: the model).
        """
        if self.shape.world_size == 1:
            return
        module = self.model if module is None else module
        saved = module.state_dict().keys()
        for name, buffer in module.named_buffers():
            if name in saved and not isinstance(buffer, DTensor):
                dist.broadcast(buffer, src=0)

    def reshard(self) -> None:
        """Reshard the parameters that a forward pass without a backward pass has gathered."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def lay_out(
    model: nn.Module,
    shape: Shape,
    context: Context,
    *,
    precision: str = "fp32",
    blocks: Sequence[str] = (),
    checkpoint_activations: bool = False,
    compile_blocks: bool = False,
    ddp_options: Mapping[str, Any] | None = None,
) -> LaidOutModel:
    """Put a model on this rank's device and lay it out. Every rank gets rank 0's weights.

    precision: "fp32", "bf16" or "fp16". The weights keep their own type.
    blocks: class names of the repeated layers (default: found automatically in the model's lists).
    checkpoint_activations: recompute each block's activations in the backward pass.
    compile_blocks: compile each block with torch.compile.
    ddp_options: more keywords for DistributedDataParallel, such as find_unused_parameters.
    """
    _check(shape, precision)
    mesh = make_mesh(shape, context.device)
    is_empty = any(p.is_meta for p in model.parameters())
    if not is_empty:
        model.to(context.device)
        if shape.fsdp > 1 or shape.tp > 1:
            copy_weights_of_first_rank(model)
    if mesh is not None and shape.tp > 1:
        apply_tp(model, mesh["tp"])
    layers = find_blocks(model, blocks) or [model]
    if checkpoint_activations:
        for layer in layers:
            apply_activation_checkpoints(layer)
    if compile_blocks:
        for layer in layers:
            layer.compile()
    module = model
    if mesh is not None and shape.fsdp > 1:
        axes = mesh["dp", "fsdp"] if shape.dp > 1 else mesh["fsdp"]
        apply_fsdp(model, axes, precision=precision, blocks=layers)
    if is_empty:
        _fill(model, context.device)
    if mesh is not None and set(shape.axes) == {"dp"}:
        module = apply_ddp(model, context.device, **(ddp_options or {}))
    return LaidOutModel(
        module=module,
        model=model,
        shape=shape,
        mesh=mesh,
        data_rank=context.rank // shape.tp,
        autocast=make_autocast(context.device, "fp32" if shape.fsdp > 1 else precision),
    )


def make_mesh(shape: Shape, device: torch.device) -> DeviceMesh | None:
    """Return a mesh with the shape's axes, or None for one rank."""
    axes = shape.axes
    if not axes:
        return None
    return init_device_mesh(device.type, tuple(axes.values()), mesh_dim_names=tuple(axes))


def apply_ddp(model: nn.Module, device: torch.device, **options: Any) -> DistributedDataParallel:
    """Copy the model to every rank. Gradients are averaged while they are computed."""
    ids = [device.index] if device.type == "cuda" else None
    module = DistributedDataParallel(
        model, **{"device_ids": ids, "gradient_as_bucket_view": True, **options}
    )
    if not options.get("static_graph") and not options.get("find_unused_parameters"):
        _settle_buckets(module)
    return module


def _settle_buckets(module: DistributedDataParallel) -> None:
    """Make DDP arrange its buckets before the first step rather than after it.

    DDP starts with one bucket and arranges others in the order in which the first backward pass
    computes gradients. With three or more ranks, the rounding of a gradient's sum depends on its position in
    a bucket. So the first step of a resumed training would differ from the same step of an uninterrupted one.
    A backward pass of zeros makes both start with the same buckets, in reverse model order.
    """
    trained = [p for p in module.module.parameters() if p.requires_grad]
    is_sparse = any(getattr(layer, "sparse", False) for layer in module.module.modules())
    if not trained or is_sparse:  # DDP expects sparse gradients of such layers
        return
    module.reducer.prepare_for_forward()
    module.reducer.prepare_for_backward([])
    total = torch.zeros((), device=trained[0].device)
    for parameter in trained:
        total = total + parameter.flatten()[:0].sum().to(total)
    total.backward()
    module.zero_grad(set_to_none=True)


def apply_fsdp(
    model: nn.Module, mesh: DeviceMesh, *, precision: str, blocks: Sequence[nn.Module]
) -> None:
    """Shard each block, then the rest, over the mesh's last axis. A first axis holds replicas (HSDP)."""
    dtype = None if precision == "fp32" else PRECISIONS[precision]
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype and torch.float32)
    for block in blocks:
        if block is not model:
            fully_shard(block, mesh=mesh, mp_policy=policy)
    # Outputs are fp32, as under DDP, because a loss in bfloat16 would be rounded to two digits.
    whole = policy if dtype is None else replace(policy, output_dtype=torch.float32)
    fully_shard(model, mesh=mesh, mp_policy=whole)


def apply_tp(model: nn.Module, mesh: DeviceMesh) -> None:
    """Split layers over the ranks of an axis, according to the model's plan."""
    plan = getattr(model, "tensor_parallel_plan", None)
    if plan is None:
        raise SpecError(
            f"{type(model).__name__} has no tensor_parallel_plan",
            hint="tp needs a plan for splitting the layers: a dict of module names to "
            "ColwiseParallel() and similar, or a method that returns one; fsdp needs no plan",
        )
    from torch.distributed.tensor.parallel import parallelize_module

    parallelize_module(model, mesh, plan() if callable(plan) else plan)


def apply_activation_checkpoints(block: nn.Module) -> None:
    """Keep only a block's inputs, and recompute the rest in the backward pass."""
    from torch.utils.checkpoint import checkpoint

    block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)


def find_blocks(model: nn.Module, class_names: Sequence[str] = ()) -> list[nn.Module]:
    """Return the repeated layers: by class, from Hugging Face's own list, or the items of module lists."""
    classes = tuple(class_names) or tuple(getattr(model, "_no_split_modules", None) or ())
    present = {type(module).__name__ for module in model.modules()}
    if class_names and (unknown := [name for name in class_names if name not in present]):
        raise SpecError(
            f"the model has no module of class {unknown[0]}",
            hint=did_you_mean(unknown[0], sorted(present)),
        )
    if classes:
        named = [item for item in model.named_modules() if type(item[1]).__name__ in classes]
        # Sharding needs inner modules first.
        return [module for _, module in sorted(named, key=lambda item: -item[0].count("."))]
    return list(dict.fromkeys(_outermost_items(model)))


def _outermost_items(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from _called_items(child)
        else:
            yield from _outermost_items(child)


def _called_items(container: nn.Module) -> Iterator[nn.Module]:
    """Yield the items of a list, and those of nested lists and dicts, which have no forward pass."""
    for item in container.children():
        if isinstance(item, nn.ModuleList | nn.ModuleDict):
            yield from _called_items(item)
        else:
            yield item


def make_autocast(
    device: torch.device, precision: str
) -> Callable[[], AbstractContextManager[Any]]:
    """Return a function that makes the context of a forward pass."""
    if precision == "fp32":
        return contextlib.nullcontext
    return functools.partial(torch.autocast, device.type, dtype=PRECISIONS[precision])


def copy_weights_of_first_rank(model: nn.Module) -> None:
    """Copy rank 0's parameters and buffers to every rank. DDP does this itself, but sharding does not."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor, src=0)


def _fill(model: nn.Module, device: torch.device) -> None:
    """Initialize the weights of a model that was made on the meta device."""
    model.to_empty(device=device)
    if not callable(getattr(model, "init_weights", None)):
        raise SpecError(
            f"{type(model).__name__} was made on the meta device but has no init_weights()",
            hint="add that method to fill every parameter and buffer, or make the model on the CPU",
        )
    model.init_weights()


def _check(shape: Shape, precision: str) -> None:
    if precision not in PRECISIONS:
        raise SpecError(
            f"unknown precision {precision!r}", hint=did_you_mean(precision, PRECISIONS)
        )
    if shape.is_deepspeed:
        raise SpecError(
            "lay_out does not support DeepSpeed, which lays a model out by itself",
            hint='use TorchTrainer(strategy="deepspeed")',
        )
    if shape.tp > 1 and shape.dp > 1 and shape.fsdp == 1:
        raise SpecError(
            f"the shape {shape} replicates split layers",
            hint=f'write "fsdp={shape.dp},tp={shape.tp}"',
        )
    if precision == "fp16" and shape.fsdp > 1:
        raise SpecError("fsdp does not support fp16", hint='use precision="bf16"')
