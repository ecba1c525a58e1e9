"""Gradients between the backward pass and the optimizer: their norm, clipping, and steps that are left out.

Called by the trainer once a step. Nothing here waits for the device, except where an optimizer cannot leave a
step out by itself: the norm is a tensor, and whether it was finite is read later by whoever reports it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer


def clip_gradients(parameters: Iterable[nn.Parameter], limit: float | None) -> torch.Tensor:
    """Scale gradients down to a total norm of `limit` at most; returns the norm they had, over all shards."""
    with_grad = [p for p in parameters if p.grad is not None]
    groups: dict[Any, list[nn.Parameter]] = defaultdict(list)
    for parameter in with_grad:
        groups[getattr(parameter.grad, "device_mesh", None)].append(parameter)
    norms = [_norm([p.grad for p in group]) for group in groups.values()]
    if not norms:
        return torch.zeros(())
    norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    if limit is not None and limit > 0:
        for group in groups.values():
            nn.utils.clip_grads_with_norm_(group, limit, norm)
    return norm


def _norm(gradients: list[Any]) -> torch.Tensor:
    norm = nn.utils.get_total_norm(gradients)
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


def step_if_finite(optimizer: Optimizer, norm: torch.Tensor) -> None:
    """Step, unless a gradient is infinite or not a number: then weights and moments stay as they are.

    A fused optimizer on a GPU leaves the step out in its own kernel. Others are asked to step only after the
    norm was read, which is free on the CPU and waits for the device elsewhere.
    """
    if norm.is_cuda and (flag := make_skip_flag(optimizer, norm)) is not None:
        step_unless(optimizer, flag)
    elif math.isfinite(norm.item()):
        optimizer.step()


def make_skip_flag(optimizer: Optimizer, norm: torch.Tensor) -> torch.Tensor | None:
    """A tensor that is 1 where the norm is not finite; None if the optimizer's kernels cannot take one."""
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return None
    flag = (~torch.isfinite(norm)).to(torch.float32)
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    meshes = {getattr(parameter, "device_mesh", None) for parameter in parameters}
    if meshes == {None}:
        return flag
    if len(meshes) > 1:
        return None
    from torch.distributed.tensor import DTensor, Replicate

    mesh: Any = meshes.pop()
    return DTensor.from_local(flag, mesh, [Replicate()] * mesh.ndim, run_check=False)


def step_unless(optimizer: Optimizer, flag: torch.Tensor) -> None:
    """Step, unless the flag is 1, which only the device knows; as torch.amp.GradScaler does it."""
    state: Any = optimizer
    state.grad_scale, state.found_inf = None, flag
    try:
        optimizer.step()
    finally:
        del state.grad_scale, state.found_inf
