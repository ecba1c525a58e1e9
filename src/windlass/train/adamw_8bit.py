"""AdamW whose moments take one byte per weight each instead of four, by torchao: for models that just fit.

Weights and gradients stay what they are. Small tensors keep their moments in float32, as torchao decides.
Called by trainer_parts, when it is asked for by name.
"""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from windlass.errors import SpecError

ADAMW_8BIT = "adamw8bit"


def make_adamw_8bit(groups: list[dict[str, Any]], *, lr: float) -> Optimizer:
    """The optimizer of these parameters."""
    try:
        from torchao.optim import AdamW8bit
    except ImportError as error:
        raise SpecError(
            f"optimizer {ADAMW_8BIT!r} needs torchao, which is not installed here",
            hint="pip install torchao",
        ) from error
    if any(isinstance(parameter, DTensor) for group in groups for parameter in group["params"]):
        raise SpecError(
            f"optimizer {ADAMW_8BIT!r} is for parameters that are whole on every rank",
            hint='strategy "none" or "ddp"; sharded ("fsdp"), the moments of adamw are small already',
        )
    made: Optimizer = AdamW8bit(groups, lr=lr)
    return made
