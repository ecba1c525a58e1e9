"""Signals that ranks agree on while they train: to stop, to save now. All act after the same step.

Any rank may propose, and no rank waits. A proposal is written to the store of the process group, with the
step after which it takes effect. Every rank checks the store between steps. The trainer keeps ranks within
one step of each other. All ranks therefore read a proposal in time if it takes effect two steps later. Only
the trainer calls this.
"""

from __future__ import annotations

import itertools
import time

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from windlass.train.parallel.context import Context

STOP = "stop"
SAVE = "save"
END = "end"

_CHECK_EVERY_S = 0.25
_MAX_STEPS = 256  # most steps between two checks
_MEASURED_STEPS = 8  # steps after which the step time sets the check interval
_instances = itertools.count()


class StepSignals:
    """Proposals of one training run. Every rank calls `check` after every step."""

    def __init__(self, context: Context, *, first_step: int) -> None:
        self._is_alone = not dist.is_initialized() or context.world_size == 1
        store = dist.HashStore() if self._is_alone else _get_default_store()
        prefix = f"windlass/train/{context.attempt}/{next(_instances)}"
        self._store = dist.PrefixStore(prefix, store)
        self._is_main = context.is_main
        self._first_step = first_step
        self._started_s = time.monotonic()
        self._every = 1
        self._num_done = {STOP: 0, SAVE: 0, END: 0}
        self._due: dict[str, int] = {}

    def propose(self, name: str, step: int) -> None:
        """Ask all ranks to act soon after this step, unless a rank already asked."""
        if name not in self._due:
            due_step = step if self._is_alone else self._next_check(step + 2)
            answer = self._store.compare_set(self._key(name), "", str(due_step))
            self._due[name] = int(answer)

    def check(self, step: int) -> set[str]:
        """Return the actions due after this step, which are the same on every rank."""
        if not self._is_alone:
            self._set_check_interval(step)
            if self._is_check_due(step):
                self._read_proposals()
        due = {name for name, due_step in self._due.items() if due_step <= step}
        for name in due:
            del self._due[name]
            self._num_done[name] += 1
        return due

    def _key(self, name: str) -> str:
        return f"{name}-{self._num_done[name]}"

    def _read_proposals(self) -> None:
        for name in self._num_done:
            if name not in self._due and self._store.check([self._key(name)]):
                self._due[name] = int(self._store.get(self._key(name)))

    def _is_check_due(self, step: int) -> bool:
        num_steps = step - self._first_step
        return num_steps < 2 * _MEASURED_STEPS or num_steps % self._every == 0

    def _next_check(self, step: int) -> int:
        return next(later for later in itertools.count(step) if self._is_check_due(later))

    def _set_check_interval(self, step: int) -> None:
        """Check every 250 ms instead of after every step, if steps are short."""
        num_steps = step - self._first_step + 1
        if num_steps == _MEASURED_STEPS and self._is_main:
            step_s = (time.monotonic() - self._started_s) / num_steps
            self._store.set("every", str(min(_MAX_STEPS, max(1, int(_CHECK_EVERY_S / step_s)))))
        if num_steps == _MEASURED_STEPS + 2:
            self._every = int(self._store.get("every"))
