"""Numbers of a step that are read one step later, so that no step waits for the device.

The trainer puts a tensor in, and takes the numbers out when the next step is under way. `StepFence` keeps the
host at most one step ahead of the device, which bounds memory and keeps ranks close to each other.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
import torch.distributed as dist


class LateValues:
    """One tensor of numbers on its way to the host, summed over ranks first."""

    def __init__(self, values: torch.Tensor, *, world_size: int) -> None:
        self._values = values.detach().clone()
        self._work: Any = None
        self._event: Any = None
        if world_size > 1:
            self._work = dist.all_reduce(self._values, async_op=True)
        if self._values.is_cuda:
            if self._work is not None:
                self._work.wait()  # orders the streams; the host does not wait
            on_host = torch.empty(self._values.shape, dtype=self._values.dtype, pin_memory=True)
            self._values = on_host.copy_(self._values, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    @property
    def is_ready(self) -> bool:
        """Whether reading waits for no device; other ranks may be waited for."""
        return self._event is None or bool(self._event.query())

    def read(self) -> list[float]:
        if self._event is not None:
            self._event.synchronize()
        elif self._work is not None:
            self._work.wait()
        return [float(value) for value in self._values.tolist()]


class StepFence:
    """Waits, after each step, until the device has done the step before it."""

    def __init__(self, device: torch.device) -> None:
        self._events: deque[Any] | None = deque() if device.type == "cuda" else None

    def step_queued(self) -> None:
        if self._events is None:
            return
        event = torch.cuda.Event()
        event.record()
        self._events.append(event)
        if len(self._events) > 1:
            self._events.popleft().synchronize()
