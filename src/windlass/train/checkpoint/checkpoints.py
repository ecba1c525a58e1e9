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
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from windlass import names
from windlass.errors import EngineError, SpecError
from windlass.train.checkpoint.checkpoint_commit import (
    BestStep,
    Commit,
    find_best,
    find_unfinished,
    remove_half_written,
    remove_unfinished,
    write_best,
)
from windlass.train.checkpoint.checkpoint_load import Check, LoadedCheckpoint, load_checkpoint
from windlass.train.checkpoint.checkpoint_manifest import CheckpointManifest, find_whole
from windlass.train.checkpoint.checkpoint_storage import find_foreign, find_free_name, open_storage
from windlass.train.checkpoint.checkpoint_writer import ProcessWriter, ThreadWriter, run_aside
from windlass.train.checkpoint.rank_shares import PlannedSave, SavePlans, Share
from windlass.train.checkpoint.run_lock import STALE, RunLock, check_owner, take_run
from windlass.train.checkpoint.state_encoding import TRUST_HINT
from windlass.train.checkpoint.training_state import flatten_state, read_rng
from windlass.train.parallel.context import Context, get_context
from windlass.waiting import wait_until

logger = logging.getLogger(__name__)

TIMEOUT_S = 1800.0  # for one save to be whole
_FAILURES_ACCEPTED = 1  # saves in a row that may fail before a training ends because of it
_LONG_WAIT_S = 1.0
_SHOWN_WITHIN_S = 10.0  # a network file system may show a new file a little later
_SHARED_HINT = (
    "checkpoints need a folder that all nodes share: mount a claim (--volume CLAIM:/out), or write to "
    "a URL (--out s3://BUCKET/FOLDER); --checkpoint-every 0 trains without"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saving:
    """A save under way."""

    step: int
    folder: str
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
        trust_checkpoint: bool = False,
    ) -> None:
        """Checkpoints in a folder that all ranks see: a path or an fsspec URL.

        keep: so many of the newest stay; the best one stays besides.
        is_async: write in a process of its own, which costs a copy of this rank's share in host memory.
        timeout_s: how long a save may take from its start until it is whole.
        trust_checkpoint: accept a run that another user owns, and save and load objects that need pickle.
        Only then can loading run code of whoever wrote the checkpoint.
        """
        if keep < 1:
            raise SpecError(f"keep={keep}: at least one checkpoint must stay")
        self._context = context if context is not None else get_context()
        self._storage = open_storage(folder)
        self._keep = keep
        self._timeout_s = timeout_s
        self._trust = trust_checkpoint
        self._lock: RunLock | None = None
        self._leftovers: frozenset[str] = frozenset()
        self._number = 0  # of the last save
        self._safe_step: int | None = None
        self._plans = SavePlans()
        self._is_async = is_async and not self._storage.is_of_this_process
        self._writer: ProcessWriter | None = None
        self._preparing: Future[None] | None = None
        self._saving: _Saving | None = None
        self._num_failures = 0
        self._is_shared = False
        self._has_warned_of_wait = False
        self._num_written = 0
        self._best_to_mark: BestStep | None = None
        self._damaged: frozenset[int] = frozenset()  # steps that were passed over by the last load

    def claim(self, *, fresh: bool = False) -> None:
        """Become the one training that writes to this run; the first save does so as well.

        Refuses a run that another training writes to, one that another user owns, and a folder that is
        not the same on all nodes. fresh: move what an earlier training left there aside.
        """
        if self._is_shared:
            return
        refusal: tuple[str, str] | None = None
        if self._context.is_main:
            try:
                self._take_run(fresh=fresh)
            except (SpecError, EngineError) as error:
                refusal = (error.message, error.hint)
            except OSError as error:
                refusal = (f"{self._storage.root} cannot be written: {error}", _SHARED_HINT)
        refusal = self._context.broadcast(refusal)
        if refusal is not None:
            raise SpecError(refusal[0], hint=refusal[1])
        self._check_shared()
        self._is_shared = True

    def refuse_foreign(self) -> None:
        """Raise SpecError on all ranks if another user owns the run; claim() and load() do so as well."""
        foreign = ""
        if self._context.is_main and not self._trust:
            foreign = find_foreign(self._storage, [""])
        if foreign := self._context.broadcast(foreign):
            raise SpecError(f"{foreign}: nothing is written there", hint=TRUST_HINT)

    def _take_run(self, *, fresh: bool) -> None:
        self._storage.make_root()
        if not self._trust and (foreign := find_foreign(self._storage, [""])):
            raise SpecError(f"{foreign}: nothing is saved there", hint=TRUST_HINT)
        lock = self._lock_run()
        is_own = lock.previous is not None and lock.previous.job == read_job_id() != ""
        if fresh and not is_own and any(not n.startswith(".") for n in self._storage.names()):
            aside = find_free_name(self._storage.root)
            self._storage.move_root(aside)
            logger.warning("%s was of an earlier training: moved to %s", self._storage.root, aside)
            lock.close()
            lock = self._lock_run()
        self._lock, self._release = lock, weakref.finalize(self, lock.close)
        for name in remove_half_written(self._storage):
            logger.info("%s/%s was not written to its end: removed", self._storage.root, name)
        self._leftovers = find_unfinished(self._storage)
        whole = find_whole(self._storage)
        self._number = whole[0].number if whole else 0
        self._safe_step = whole[0].step if whole else None

    def _check_shared(self) -> None:
        """Refuse a folder that is not the same on all nodes, before a save would wait for files in vain."""
        storage, context = self._storage, self._context
        if context.world_size == 1:
            return
        name, error = f".shared-{secrets.token_hex(4)}", ""
        if context.is_main:
            try:
                storage.write(name, b"")
            except OSError as refused:
                error = str(refused)
        name, error = context.broadcast((name, error))
        if error:
            raise SpecError(f"{storage.root} cannot be written: {error}", hint=_SHARED_HINT)
        is_seen = wait_until(lambda: storage.size(name) is not None, timeout_s=_SHOWN_WITHIN_S)
        blind = [node for node, sees in context.gather((context.node, is_seen)) if not sees]
        if context.is_main:
            storage.remove(name)
        if blind:
            raise SpecError(
                f"{storage.root} is not the same folder on node {blind[0]} as where rank 0 is",
                hint=_SHARED_HINT,
            )

    def _lock_run(self) -> RunLock:
        context = self._context
        return take_run(
            self._storage, job=read_job_id(), attempt=context.attempt, preemption=context.preemption
        )

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
        is not in `timeout_s`. The first save of a run, and the first after a restart, is waited for as well:
        until it is whole, a crash loses everything.
        """
        was_announced = self._context.preemption.is_announced  # before other ranks are waited for
        _check_facts(facts)
        self.claim()
        self._mark_best()
        end_s = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        error = self._settle_before_next(end_s)
        planned, folder, is_first, failure = self._agree(state, step, error)
        if failure:
            self._saving = _Saving(step=step, folder=folder, end=_make_failed(failure))
            if block or not self._is_async:
                self._wait(end_s, was_announced)
            return
        share = Share(
            root=self._storage.root,
            folder=folder,
            rank=self._context.rank,
            plan=planned.plan,
            rng=read_rng(),
            num_bytes=planned.num_bytes,
        )
        order = self._make_commit(planned, folder, step=step, epoch=epoch, facts=facts)
        if self._is_async and not is_first and (self._writer is not None or not block):
            optimizers = [value for value in state.values() if isinstance(value, Optimizer)]
            end = self._get_writer().start(share, order, planned.data, optimizers)
        else:  # also where a process would have to be started first, and somebody waits
            end = ThreadWriter().start(share, order, planned.data)
        self._saving = _Saving(step=step, folder=folder, end=end)
        if order is not None:
            end.add_done_callback(lambda end: self._note_end(end, step))
        if block or not self._is_async:
            self._wait(end_s, was_announced)
        elif is_first:  # the next save reports how it ended; its writer starts meanwhile
            self._get_writer()
            self._wait_for_end(end, step, end_s, was_announced)

    def _note_end(self, end: Future[None], step: int) -> None:
        if not end.cancelled() and end.exception() is None:
            self._safe_step = step

    @property
    def safe_step(self) -> int | None:
        """The step that a restart would continue from, as rank 0 knows it while it saves."""
        return self._safe_step

    def prepare(self, state: Mapping[str, Any]) -> None:
        """Do beforehand what makes the first save slow: the plan, the writer process, memory for the copy.

        Optional; of use when the optimizer has its state, so after the first step. Nothing is waited for.
        """
        table = flatten_state(state, allow_pickle=self._trust)  # raises for what cannot be saved
        if not self._is_async or self._writer is not None:
            return
        self.claim()
        is_known = self._plans.set_state(table, rank=self._context.rank)
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
        Loading runs no code of a checkpoint, and changes nothing in the folder: another training may write
        to it. What another user owns, or what needs pickle, is refused without `trust_checkpoint`.
        """
        self.wait()
        loaded = load_checkpoint(
            self._storage, self._context, state, step=step, check=check, trust=self._trust
        )
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
            if self._lock is not None:
                check_owner(self._storage, self._lock.token)
            write_best(self._storage, best)
        except (EngineError, OSError) as error:
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
        self._wait(time.monotonic() + self._timeout_s, self._context.preemption.is_announced)

    def close(self, *, timeout_s: float | None = None) -> None:
        """Wait for the last save and end the writer. A failure is logged: other ranks are not asked."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        was_announced = self._context.preemption.is_announced
        if error := self._settle(time.monotonic() + limit_s, was_announced):
            logger.error("the last checkpoint was not saved: %s", error)
        self._mark_best()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            atexit.unregister(self._close_at_exit)
        if self._lock is not None:
            self._release()
            self._lock = None
        self._is_shared = False

    def _wait(self, end_s: float, was_announced: bool) -> None:
        errors = [one for one in self._context.gather(self._settle(end_s, was_announced)) if one]
        self._num_failures = 0
        if errors:
            self._remove_failed()
            raise EngineError(f"a checkpoint was not saved: {errors[0]}", hint=self._room_hint)

    def _settle(self, end_s: float, was_announced: bool) -> str:
        """Wait for the save under way, if any. Return why it failed, or ""."""
        saving, self._saving = self._saving, None
        if saving is None:
            return ""
        self._leftovers |= {saving.folder}  # unless it is whole
        if not self._wait_for_end(saving.end, saving.step, end_s, was_announced):
            if self._writer is not None:
                self._writer.kill()
            return f"step-{saving.step} was not written in time"
        try:
            saving.end.result()
        except Exception as error:  # noqa: BLE001 - every rank learns of it before one raises
            return f"step-{saving.step}: {error}"
        self._leftovers -= {saving.folder}
        self._num_written += 1
        self._damaged -= {saving.step}
        return ""

    def _wait_for_end(
        self, end: Future[None], step: int, end_s: float, was_announced: bool
    ) -> bool:
        """Wait until a save has ended, saying so now and then. SIGTERM ends the wait with its grace.

        was_announced: SIGTERM came before. A save that it asks for has a limit of its own.
        """
        preemption = self._context.preemption
        limit_s = max(0.0, end_s - time.monotonic())

        def is_over() -> bool:
            return end.done() or (preemption.is_over and not was_announced)

        def say(waited_s: float) -> None:
            logger.warning(
                "waiting until step-%d is written to %s: %.0f of %.0f s",
                *(step, self._storage.root, waited_s, limit_s),
            )

        wait_until(is_over, timeout_s=limit_s, every_s=0.01, say=say)
        return end.done()

    def _settle_before_next(self, end_s: float) -> str:
        """Settle the last save before the next one. Warn once if training has to wait for it.

        A long first save is no reason to warn: its writer has to start.
        """
        saving, started_s = self._saving, time.monotonic()
        error = self._settle(end_s, self._context.preemption.is_announced)
        waited_s = time.monotonic() - started_s
        is_slow = waited_s > _LONG_WAIT_S and self._num_written > 1
        if saving is None or error or not is_slow or self._has_warned_of_wait:
            return error
        self._has_warned_of_wait = True
        if self._context.is_main:
            logger.warning(
                "training waited %.1f s until step-%d was written: what is written to is slower than "
                "saves come; save less often, or elsewhere",
                *(waited_s, saving.step),
            )
        return ""

    def _agree(
        self, state: Mapping[str, Any], step: int, error: str
    ) -> tuple[PlannedSave, str, bool, str]:
        """Agree with all ranks on the plan of a save, its folder, and whether to wait for it.

        The folder is made here and nowhere else: what removes it while it is written fails the save. The
        last value says why it could not be made.
        """
        table = flatten_state(state, allow_pickle=self._trust)
        is_known = self._plans.set_state(table, rank=self._context.rank)
        folder = f"step-{step}"
        if self._storage.can_rename:
            folder += f".tmp-{self._context.attempt}-{secrets.token_hex(4)}"
        failure = self._make_folder(folder) if self._context.is_main else ""
        is_first = self._safe_step is None or (self._context.attempt > 0 and not self._num_written)
        answers = self._context.gather((step, is_known, folder, error, is_first, failure))
        if steps := sorted({one[0] for one in answers} - {step}):
            raise SpecError(f"rank {self._context.rank} saves step {step}, others step {steps[0]}")
        folder, is_first, failure = answers[0][2], bool(answers[0][4]), str(answers[0][5])
        if errors := [one[3] for one in answers if one[3]]:
            self._remove_failed(but=folder)  # which another rank may have begun
        self._count_failure([*errors, *([failure] if STALE in failure else [])])
        planned = self._plans.plan(self._context, is_known=all(one[1] for one in answers))
        return planned, folder, is_first, failure

    def _make_folder(self, folder: str) -> str:
        """Make the folder of a save, or empty it where it has its final name. Return an error, or ""."""
        try:
            if self._lock is not None:
                check_owner(self._storage, self._lock.token)
            if self._storage.can_rename:
                self._storage.make_folder(folder)
            else:
                self._storage.remove(folder)  # no half of an old one in a new one
        except (EngineError, OSError) as error:
            return str(error)
        return ""

    def _remove_failed(self, *, but: str = "") -> None:
        """Give back the room that a failed save takes, once no rank writes to it any more."""
        if self._context.is_main and self._lock is not None:
            # if storage fails here, the next save reports it
            with contextlib.suppress(OSError, EngineError):
                check_owner(self._storage, self._lock.token)
                remove_half_written(self._storage, but=but)
                remove_unfinished(self._storage, self._leftovers - {but})

    def _count_failure(self, errors: list[str]) -> None:
        """Accept one failed save, raise at two in a row. Every rank has the same errors."""
        self._num_failures = self._num_failures + 1 if errors else 0
        if stale := [error for error in errors if STALE in error]:
            raise EngineError(
                f"a checkpoint was not saved: {stale[0]}",
                hint="this training ends, so that it does not disturb the other one",
            )
        if self._num_failures > _FAILURES_ACCEPTED:
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
            self._writer = ProcessWriter(None if self._lock is None else self._lock.file)
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
        if self._lock is None:
            return None
        self._number += 1
        manifest = CheckpointManifest(
            step=step,
            epoch=epoch,
            number=self._number,
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
            leftovers=self._leftovers,
            token=self._lock.token,
            timeout_s=self._timeout_s,
        )


def _make_failed(error: str) -> Future[None]:
    end: Future[None] = Future()
    end.set_exception(EngineError(error))
    return end


def read_job_id() -> str:
    """Return the id of the Windlass job that this process is a rank of; empty outside of jobs."""
    return os.environ.get(names.JOB_ID, "")


def _check_facts(facts: Mapping[str, Any]) -> None:
    try:
        json.dumps(dict(facts))
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"the facts of a checkpoint must be JSON: {error}",
            hint="put tensors and objects into the state, plain numbers and texts into the facts",
        ) from error
