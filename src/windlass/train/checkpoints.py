"""Checkpoints of a training: saved by all ranks together, whole or not there, loaded at any world size.

    checkpoints = Checkpoints(out / run)
    loaded = checkpoints.load({"model": model, "optimizer": optimizer})      # None: nothing there yet
    checkpoints.save({"model": model, "optimizer": optimizer}, step=40, facts={"seed": 0})

A folder looks like `step-40/rank-0/...` with one `manifest.json`; `latest`, `best` and `epoch-3` point to
such folders. Called by trainers and by people with loops of their own.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import secrets
import time
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from windlass.errors import EngineError, SpecError
from windlass.train.checkpoint_commit import (
    BestStep,
    Commit,
    find_best,
    remove_failed,
    remove_half_written,
    write_best,
)
from windlass.train.checkpoint_load import Check, LoadedCheckpoint, load_checkpoint
from windlass.train.checkpoint_manifest import CheckpointManifest, find_whole
from windlass.train.checkpoint_plan import PlannedSave, SavePlans
from windlass.train.checkpoint_rng import read_rng
from windlass.train.checkpoint_shards import Share
from windlass.train.checkpoint_sharing import check_shared
from windlass.train.checkpoint_state import flatten_state
from windlass.train.checkpoint_storage import open_storage
from windlass.train.checkpoint_writer import ProcessWriter, ThreadWriter, run_aside
from windlass.train.context import Context, get_context

logger = logging.getLogger(__name__)

TIMEOUT_S = 1800.0  # for one save to be whole
_FAILURES_BORNE = 1  # saves in a row that may fail before a training ends because of it
_LONG_WAIT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saving:
    """A save under way."""

    step: int
    end: Future[None]


class Checkpoints:
    """The checkpoints of one run. All ranks call its methods together, close() and the properties apart."""

    def __init__(
        self,
        folder: str | Path,
        *,
        keep: int = 2,
        is_async: bool = True,
        context: Context | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Checkpoints in a folder that all ranks see: a path or an fsspec URL.

        keep: so many of the newest stay; the best one stays besides.
        is_async: write in a process of its own, which costs a copy of this rank's share in host memory.
        timeout_s: how long a save may take from its start until it is whole.
        """
        if keep < 1:
            raise SpecError(f"keep={keep}: at least one checkpoint must stay")
        self._context = context if context is not None else get_context()
        self._storage = open_storage(folder)
        self._keep = keep
        self._timeout_s = timeout_s
        self._plans = SavePlans()
        self._is_async = is_async and not self._storage.is_of_this_process
        self._writer: ProcessWriter | None = None
        self._preparing: Future[None] | None = None
        self._saving: _Saving | None = None
        self._num_failures = 0
        self._is_shared = False
        self._is_wait_told = False
        self._num_written = 0
        self._best_to_mark: BestStep | None = None
        self._damaged: frozenset[int] = frozenset()  # steps that were passed over by the last load

    def check_shared(self) -> None:
        """Refuse a folder that is not the same on all nodes; the first save does so as well."""
        if not self._is_shared:
            check_shared(self._storage, self._context)
            self._is_shared = True

    def save(
        self,
        state: Mapping[str, Any],
        *,
        step: int,
        facts: Mapping[str, Any],
        epoch: int | None = None,
        block: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """Save the state as step-S; with `epoch`, epoch-E points to it.

        Asynchronous saves return when the state is copied, and there is one at a time: the next waits for
        it. If one failed, the next says so and goes on; if two in a row did, it raises. With `block` (and
        always where saves are not asynchronous) this returns when the checkpoint is whole, and raises if it
        is not in `timeout_s`.
        """
        _check_facts(facts)
        self.check_shared()
        self._mark_best()
        end_s = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        error = self._settle_before_next(end_s)
        planned, folder = self._agree(state, step, error)
        share = Share(
            root=self._storage.root,
            folder=folder,
            rank=self._context.rank,
            plan=planned.plan,
            rng=read_rng(),
            num_bytes=planned.num_bytes,
        )
        order = self._make_commit(planned, folder, step=step, epoch=epoch, facts=facts)
        if self._is_async and (self._writer is not None or not block):
            optimizers = [value for value in state.values() if isinstance(value, Optimizer)]
            end = self._get_writer().start(share, order, planned.data, optimizers)
        else:  # also where a process would have to be started first, and somebody waits
            end = ThreadWriter().start(share, order, planned.data)
        self._saving = _Saving(step=step, end=end)
        if block or not self._is_async:
            self._wait(end_s)

    def prepare(self, state: Mapping[str, Any]) -> None:
        """Do beforehand what makes the first save slow: the plan, the writer process, memory for the copy.

        Optional; of use when the optimizer has its state, so after the first step. Nothing is waited for.
        """
        if not self._is_async or self._writer is not None:
            return
        is_known = self._plans.look(flatten_state(state), rank=self._context.rank)
        planned = self._plans.plan(self._context, is_known=all(self._context.gather(is_known)))
        memory = self._get_writer().memory
        self._preparing = run_aside(lambda: memory.prepare(planned.data))

    def load(
        self, state: Mapping[str, Any], *, step: int | None = None, check: Check | None = None
    ) -> LoadedCheckpoint | None:
        """Load the newest whole checkpoint, or that of `step`, in place; None: nothing was saved yet.

        check: called with a checkpoint's facts and step before its weights are compared; raises to refuse.
        Checkpoints that are damaged, half-written or of another model are named, and the one before is
        taken. If there are some and none can be used, this raises: training from scratch unawares is worse.
        """
        self.wait()
        if self._context.is_main:
            for name in remove_half_written(self._storage):
                logger.info("%s/%s was not written to its end: removed", self._storage.root, name)
        loaded = load_checkpoint(self._storage, self._context, state, step=step, check=check)
        if loaded is not None:
            self._damaged |= loaded.damaged
        return loaded

    def mark_best(self, step: int, value: float) -> None:
        """Let `best` be this step's checkpoint: now, or when it is whole."""
        self._best_to_mark = BestStep(step=step, value=value)
        self._mark_best()

    def _mark_best(self) -> None:
        """Write the best step down; where that fails, the next save tries it again."""
        best = self._best_to_mark
        if best is None or not self._context.is_main:
            return
        try:
            write_best(self._storage, best)
        except OSError as error:
            logger.error(
                "step-%d is the best, which could not be written down: %s", best.step, error
            )
        else:
            self._best_to_mark = None

    @property
    def best(self) -> BestStep | None:
        """The best step whose checkpoint is there, with its value."""
        return find_best(self._storage)

    @property
    def latest(self) -> int | None:
        """The step of the newest whole checkpoint."""
        return next((manifest.step for manifest in find_whole(self._storage)), None)

    @property
    def newest_facts(self) -> dict[str, Any]:
        """The facts that the newest whole checkpoint was saved with; empty where there is none."""
        return next((dict(manifest.facts) for manifest in find_whole(self._storage)), {})

    def wait(self) -> None:
        """Wait until the last save is whole. Raises EngineError on all ranks if it failed on one."""
        self._wait(time.monotonic() + self._timeout_s)

    def close(self, *, timeout_s: float | None = None) -> None:
        """Wait for the last save and end the writer. A failure is logged: other ranks are not asked."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        if error := self._settle(time.monotonic() + limit_s):
            logger.error("the last checkpoint was not saved: %s", error)
        self._mark_best()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            atexit.unregister(self._close_at_exit)

    def _wait(self, end_s: float) -> None:
        errors = [told for told in self._context.gather(self._settle(end_s)) if told]
        self._num_failures = 0
        if errors:
            self._remove_failed()
            raise EngineError(f"a checkpoint was not saved: {errors[0]}", hint=self._room_hint)

    def _settle(self, end_s: float) -> str:
        """Wait for the save under way, if any; why it failed, if it did."""
        saving, self._saving = self._saving, None
        if saving is None:
            return ""
        try:
            saving.end.result(max(0.0, end_s - time.monotonic()))
        except FutureTimeout:
            if self._writer is not None:
                self._writer.kill()
            return f"step-{saving.step} was not written in time"
        except Exception as error:  # noqa: BLE001 - all ranks must hear of it before one raises
            return f"step-{saving.step}: {error}"
        self._num_written += 1
        self._damaged -= {saving.step}
        return ""

    def _settle_before_next(self, end_s: float) -> str:
        """The same for the next save: training waits for it then, which is told once if it takes long.

        Not of the first save, for which the writer has to start.
        """
        saving, started_s = self._saving, time.monotonic()
        error = self._settle(end_s)
        waited_s = time.monotonic() - started_s
        is_slow = waited_s > _LONG_WAIT_S and self._num_written > 1
        if saving is None or error or not is_slow or self._is_wait_told:
            return error
        self._is_wait_told = True
        if self._context.is_main:
            logger.warning(
                "training waited %.1f s until step-%d was written: what is written to is slower than "
                "saves come; save less often, or elsewhere",
                *(waited_s, saving.step),
            )
        return ""

    def _agree(self, state: Mapping[str, Any], step: int, error: str) -> tuple[PlannedSave, str]:
        """All ranks' plan of a save and the folder for it; how the save before it ended."""
        is_known = self._plans.look(flatten_state(state), rank=self._context.rank)
        folder = f"step-{step}"
        if self._storage.can_rename:
            folder += f".tmp-{self._context.attempt}-{secrets.token_hex(4)}"
        elif self._context.is_main:
            self._storage.remove(folder)  # no half of an old one in a new one
        told = self._context.gather((step, is_known, folder, error))
        if steps := sorted({one[0] for one in told} - {step}):
            raise SpecError(f"rank {self._context.rank} saves step {step}, others step {steps[0]}")
        folder = told[0][2]
        if errors := [one[3] for one in told if one[3]]:
            self._remove_failed(but=folder)  # which another rank may have begun
        self._judge(errors)
        planned = self._plans.plan(self._context, is_known=all(one[1] for one in told))
        return planned, folder

    def _remove_failed(self, *, but: str = "") -> None:
        """Give back the room that a failed save takes, once no rank writes to it any more."""
        if self._context.is_main:
            with contextlib.suppress(OSError):  # what cannot be reached is told by the next save
                remove_failed(self._storage, but=but)

    def _judge(self, errors: list[str]) -> None:
        """Bear one failed save, not two in a row; every rank judges alike."""
        self._num_failures = self._num_failures + 1 if errors else 0
        if self._num_failures > _FAILURES_BORNE:
            raise EngineError(
                f"{self._num_failures} checkpoints in a row were not saved: {errors[0]}",
                hint=self._room_hint,
            )
        if errors and self._context.is_main:
            logger.error("a checkpoint was not saved, training goes on: %s", errors[0])

    @property
    def _room_hint(self) -> str:
        return f"is there room in {self._storage.root}, and do all ranks see it?"

    def _get_writer(self) -> ProcessWriter:
        if self._writer is None:
            self._writer = ProcessWriter()
            self._owner = os.getpid()
            atexit.register(self._close_at_exit)
        if self._preparing is not None:
            self._preparing.result()
            self._preparing = None
        self._writer.begin()
        return self._writer

    def _close_at_exit(self) -> None:
        if os.getpid() == self._owner:  # not a fork of the trainer
            self.close()

    def _make_commit(
        self,
        planned: PlannedSave,
        folder: str,
        *,
        step: int,
        epoch: int | None,
        facts: Mapping[str, Any],
    ) -> Commit | None:
        if not self._context.is_main:
            return None
        manifest = CheckpointManifest(
            step=step,
            epoch=epoch,
            number=0,
            attempt=self._context.attempt,
            world_size=self._context.world_size,
            facts=dict(facts),
            files={},
            torch=str(torch.__version__),
        )
        return Commit(
            root=self._storage.root,
            folder=folder,
            manifest=manifest,
            metadata=planned.metadata,
            keep=self._keep,
            damaged=self._damaged - {step},
            timeout_s=self._timeout_s,
        )


def _check_facts(facts: Mapping[str, Any]) -> None:
    try:
        json.dumps(dict(facts))
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"the facts of a checkpoint must be JSON: {error}",
            hint="put tensors and objects into the state, plain numbers and texts into the facts",
        ) from error
