"""Optimizer whose moments are tensor subclasses, made of bytes and their scale."""

from __future__ import annotations

from typing import Any

import torch


class Rounded(torch.Tensor):
    """Apparent float32 tensor that stores each number in one byte."""

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor) -> Rounded:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined,no-any-return]
            cls, codes.shape, dtype=torch.float32, device=codes.device
        )

    def __init__(self, codes: torch.Tensor, scale: torch.Tensor) -> None:
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes", "scale"], None

    @classmethod
    def __tensor_unflatten__(
        cls, parts: dict[str, Any], context: Any, size: Any, stride: Any
    ) -> Rounded:
        del context, size, stride
        return cls(parts["codes"], parts["scale"])

    def restore(self) -> torch.Tensor:
        return self.codes.float() * self.scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func in (torch.ops.aten.detach.default, torch.ops.aten._to_copy.default):
            return cls(args[0].codes, args[0].scale)
        plain = [arg.restore() if isinstance(arg, cls) else arg for arg in args]
        return func(*plain, **(kwargs or {}))


def round_to_bytes(value: torch.Tensor) -> Rounded:
    scale = value.abs().max() / 127
    return Rounded((value / scale.clamp(min=1e-30)).round().to(torch.int8), scale)


class RoundedMomentum(torch.optim.Optimizer):
    """Momentum optimizer that rounds its moments to bytes after each step."""

    def __init__(self, params: Any, lr: float = 0.05) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                moment = state["moment"].restore() if state else torch.zeros_like(parameter)
                moment = 0.9 * moment + parameter.grad
                parameter -= group["lr"] * moment
                state["moment"] = round_to_bytes(moment)
