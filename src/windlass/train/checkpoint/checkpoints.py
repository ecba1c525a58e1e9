"""Checkpoints of a training run: saved atomically by all ranks together, and loaded at any world size.

    checkpoints = Checkpoints(out / run)
    loaded = checkpoints.load({"model": model, "optimizer": optimizer})      # None: no checkpoint yet
    checkpoints.save({"model": model, "optimizer": optimizer}, step=40, facts={"seed": 0})

A checkpoint is a folder like `step-40/rank-0/...` with one `manifest.json`. `latest`, `best` and `epoch-3`
point to such folders. Trainers and hand-written training loops use this module.
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
from windlass.train.checkpoint.checkpoint_writer import ProcessWriter, ThreadWriter, run_in_thread
from windlass.train.checkpoint.rank_shares import PlannedSave, SavePlans, Share
from windlass.train.checkpoint.run_lock import STALE, RunLock, check_owner, take_run
from windlass.train.checkpoint.state_encoding import TRUST_HINT
from windlass.train.checkpoint.training_state import flatten_state, read_rng
from windlass.train.parallel.context import Context, get_context
from windlass.waiting import wait_until

logger = logging.getLogger(__name__)

TIMEOUT_S = 1800.0  # limit for one save to be complete
_FAILURES_ACCEPTED = 1  # consecutive failed saves that a training run tolerates
_LONG_WAIT_S = 1.0
_SHOWN_WITHIN_S = 10.0  # a network file system may show a new file with a delay
_SHARED_HINT = (
    "checkpoints need a folder that all nodes share: mount a claim (--volume CLAIM:/out), or write to "
    "a URL (--out s3://BUCKET/FOLDER); --checkpoint-every 0 trains without checkpoints"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saving:
    """A save in progress."""

    step: int
    folder: str
    end: Future[None]


class Checkpoints:
    """The checkpoints of one run.

    All ranks must call its methods together, except `close` and the properties.
    """

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
        """Use the checkpoints in a folder that all ranks share: a path or an fsspec URL.

        keep: number of newest checkpoints to keep, in addition to the best one.
        is_async: write in a separate process, which needs host memory for a copy of this rank's share.
        timeout_s: maximum duration of a save, from its start until it is complete.
        trust_checkpoint: accept a run that another user owns, and save and load objects that need pickle.
        Only then can loading run code from the checkpoint.
        """
        if keep < 1:
            raise SpecError(f"keep must be at least 1, not {keep}")
        self._context = context if context is not None else get_context()
        self._storage = open_storage(folder)
        self._keep = keep
        self._timeout_s = timeout_s
        self._trust = trust_checkpoint
        self._lock: RunLock | None = None
        self._leftovers: frozenset[str] = frozenset()
        self._number = 0  # number of the last save
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
        self._damaged: frozenset[int] = frozenset()  # steps that loading skipped as damaged

    def claim(self, *, fresh: bool = False) -> None:
        """Lock the run, so that no other training writes to it. The first save does this too.

        Raises SpecError if another training process writes to the run, if another user owns it, or if the
        folder is not the same on all nodes.

        fresh: rename the folder first if it contains files of an earlier training.
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
                refusal = (f"cannot write to {self._storage.root}: {error}", _SHARED_HINT)
        refusal = self._context.broadcast(refusal)
        if refusal is not None:
            raise SpecError(refusal[0], hint=refusal[1])
        self._check_shared()
        self._is_shared = True

    def refuse_foreign(self) -> None:
        """Raise SpecError on all ranks if another user owns the run. `claim` and `load` check this too."""
        foreign = ""
        if self._context.is_main and not self._trust:
            foreign = find_foreign(self._storage, [""])
        if foreign := self._context.broadcast(foreign):
            raise SpecError(f"{foreign}; refusing to write to it", hint=TRUST_HINT)

    def _take_run(self, *, fresh: bool) -> None:
        self._storage.make_root()
        if not self._trust and (foreign := find_foreign(self._storage, [""])):
            raise SpecError(f"{foreign}; refusing to save to it", hint=TRUST_HINT)
        lock = self._lock_run()
        is_own = lock.previous is not None and lock.previous.job == read_job_id() != ""
        if fresh and not is_own and any(not n.startswith(".") for n in self._storage.names()):
            aside = find_free_name(self._storage.root)
            self._storage.move_root(aside)
            logger.warning(
                "%s belonged to an earlier training: moved to %s", self._storage.root, aside
            )
            lock.close()
            lock = self._lock_run()
        self._lock, self._release = lock, weakref.finalize(self, lock.close)
        for name in remove_half_written(self._storage):
            logger.info("removed %s/%s, which is incomplete", self._storage.root, name)
        self._leftovers = find_unfinished(self._storage)
        whole = find_whole(self._storage)
        self._number = whole[0].number if whole else 0
        self._safe_step = whole[0].step if whole else None

    def _check_shared(self) -> None:
        """Raise SpecError if the folder is not the same on all nodes.

        Otherwise a save would wait for files that never appear.
        """
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
            raise SpecError(f"cannot write to {storage.root}: {error}", hint=_SHARED_HINT)
        is_seen = wait_until(lambda: storage.size(name) is not None, timeout_s=_SHOWN_WITHIN_S)
        without = [node for node, sees in context.gather((context.node, is_seen)) if not sees]
        if context.is_main:
            storage.remove(name)
        if without:
            raise SpecError(
                f"{storage.root} on node {without[0]} is not the same folder as on the node of rank 0",
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
        """Save the state as step-S. With `epoch`, epoch-E points to it.

        An asynchronous save returns when the state is copied. Only one runs at a time, so the next one waits
        for it. If a save failed, the next one logs that and continues. If two in a row failed, it raises.

        With `block`, and always if saves are not asynchronous, this waits until the checkpoint is complete.
        It raises if that takes longer than `timeout_s`. This also waits for the first save of a run and the
        first save after a restart: until it is complete, a crash would lose everything.
        """
        was_announced = self._context.preemption.is_announced  # before waiting for other ranks
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
        commit_request = self._make_commit(planned, folder, step=step, epoch=epoch, facts=facts)
        if self._is_async and not is_first and (self._writer is not None or not block):
            optimizers = [value for value in state.values() if isinstance(value, Optimizer)]
            end = self._get_writer().start(share, commit_request, planned.data, optimizers)
        else:  # also for a blocking save without a writer process, because starting one takes long
            end = ThreadWriter().start(share, commit_request, planned.data)
        self._saving = _Saving(step=step, folder=folder, end=end)
        if commit_request is not None:
            end.add_done_callback(lambda end: self._note_end(end, step))
        if block or not self._is_async:
            self._wait(end_s, was_announced)
        elif is_first:
            # start the writer process for the next save now; the next save reports a failure of this one
            self._get_writer()
            self._wait_for_end(end, step, end_s, was_announced)

    def _note_end(self, end: Future[None], step: int) -> None:
        if not end.cancelled() and end.exception() is None:
            self._safe_step = step

    @property
    def safe_step(self) -> int | None:
        """Step that a restart would continue from. Only rank 0 updates it after its saves."""
        return self._safe_step

    def prepare(self, state: Mapping[str, Any]) -> None:
        """Speed up the first save: make its plan, start the writer process, and allocate memory for the copy.

        This is optional. Call it after the first step, when the optimizer has its state. It does not wait
        for the writer process or the memory.
        """
        table = flatten_state(
            state, allow_pickle=self._trust
        )  # raises for values that cannot be saved
        if not self._is_async or self._writer is not None:
            return
        self.claim()
        is_known = self._plans.set_state(table, rank=self._context.rank)
        planned = self._plans.plan(self._context, is_known=all(self._context.gather(is_known)))
        memory = self._get_writer().memory
        self._preparing = run_in_thread(lambda: memory.prepare(planned.data))

    def load(
        self, state: Mapping[str, Any], *, step: int | None = None, check: Check | None = None
    ) -> LoadedCheckpoint | None:
        """Load the newest complete checkpoint, or that of `step`, in place. Return None if there is none.

        Checkpoints that are damaged, incomplete or of another model are logged, and the next older one is
        tried. If there are checkpoints and none can be used, this raises: silently training from scratch
        would be worse.

        Loading runs no code from a checkpoint, and changes nothing in the folder. So another training may
        write to it meanwhile. Without `trust_checkpoint`, this refuses checkpoints that another user owns
        and objects that need pickle.

        check: called with a checkpoint's facts and step before its weights are compared. It can raise to
        refuse the checkpoint.
        """
        self.wait()
        loaded = load_checkpoint(
            self._storage, self._context, state, step=step, check=check, trust=self._trust
        )
        if loaded is not None:
            self._damaged |= loaded.damaged
        return loaded

    def mark_best(self, step: int, value: float) -> None:
        """Make `best` point to this step's checkpoint, now or once it is complete."""
        self._best_to_mark = BestStep(step=step, value=value)
        self._mark_best()

    def _mark_best(self) -> None:
        """Record the best step. If that fails, the next save retries."""
        best = self._best_to_mark
        if best is None or not self._context.is_main:
            return
        try:
            if self._lock is not None:
                check_owner(self._storage, self._lock.token)
            write_best(self._storage, best)
        except (EngineError, OSError) as error:
            logger.error(
                "step-%d is the best so far, but this could not be recorded: %s", best.step, error
            )
        else:
            self._best_to_mark = None

    @property
    def best(self) -> BestStep | None:
        """Best step whose checkpoint exists, with its value."""
        return find_best(self._storage)

    @property
    def latest(self) -> int | None:
        """Step of the newest complete checkpoint, or None if there is none."""
        return next((manifest.step for manifest in find_whole(self._storage)), None)

    @property
    def newest_facts(self) -> dict[str, Any]:
        """Facts that the newest complete checkpoint was saved with. Empty if there is none."""
        return next((dict(manifest.facts) for manifest in find_whole(self._storage)), {})

    def wait(self) -> None:
        """Wait until the last save is complete. Raises EngineError on all ranks if it failed on one."""
        self._wait(time.monotonic() + self._timeout_s, self._context.preemption.is_announced)

    def close(self, *, timeout_s: float | None = None) -> None:
        """Wait for the last save and end the writer.

        A failure is only logged, because ranks may call this separately.
        """
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
            raise EngineError(f"a checkpoint was not saved: {errors[0]}", hint=self._space_hint)

    def _settle(self, end_s: float, was_announced: bool) -> str:
        """Wait for the save in progress, if any. Return an error message, or "" if it succeeded."""
        saving, self._saving = self._saving, None
        if saving is None:
            return ""
        self._leftovers |= {saving.folder}  # removed again below if the save succeeded
        if not self._wait_for_end(saving.end, saving.step, end_s, was_announced):
            if self._writer is not None:
                self._writer.kill()
            return f"step-{saving.step} was not written in time"
        try:
            saving.end.result()
        except Exception as error:  # noqa: BLE001 - all ranks exchange errors before one raises
            return f"step-{saving.step}: {error}"
        self._leftovers -= {saving.folder}
        self._num_written += 1
        self._damaged -= {saving.step}
        return ""

    def _wait_for_end(
        self, end: Future[None], step: int, end_s: float, was_announced: bool
    ) -> bool:
        """Wait until a save has ended. Logs the wait regularly.

        If SIGTERM arrives, the wait ends with the grace period.

        was_announced: SIGTERM arrived before. The final save that it requested has its own limit.
        """
        preemption = self._context.preemption
        limit_s = max(0.0, end_s - time.monotonic())

        def is_over() -> bool:
            return end.done() or (preemption.is_over and not was_announced)

        def log_wait(waited_s: float) -> None:
            logger.warning(
                "waiting until step-%d is written to %s (%.0f of %.0f s)",
                *(step, self._storage.root, waited_s, limit_s),
            )

        wait_until(is_over, timeout_s=limit_s, every_s=0.01, say=log_wait)
        return end.done()

    def _settle_before_next(self, end_s: float) -> str:
        """Wait for the last save before the next one starts. Warn once if this takes long.

        A slow first save causes no warning, because its writer process has to start.
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
                "training waited %.1f s until step-%d was written: the storage is too slow for this "
                "many saves; save less often, or to a faster storage",
                *(waited_s, saving.step),
            )
        return ""

    def _agree(
        self, state: Mapping[str, Any], step: int, error: str
    ) -> tuple[PlannedSave, str, bool, str]:
        """Agree with all ranks on the plan of a save, its folder, and whether to wait for it.

        Only this method creates the folder, so the save fails if something removes it meanwhile. The last
        value of the result is the error if the folder could not be created, or "".
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
            raise SpecError(
                f"rank {self._context.rank} saves step {step}, but another rank saves step {steps[0]}"
            )
        folder, is_first, failure = answers[0][2], bool(answers[0][4]), str(answers[0][5])
        if errors := [one[3] for one in answers if one[3]]:
            self._remove_failed(exclude=folder)  # another rank may already write to this folder
        self._count_failure([*errors, *([failure] if STALE in failure else [])])
        planned = self._plans.plan(self._context, is_known=all(one[1] for one in answers))
        return planned, folder, is_first, failure

    def _make_folder(self, folder: str) -> str:
        """Create the folder of a save, or remove its old files if the storage cannot rename folders.

        Return an error message, or "".
        """
        try:
            if self._lock is not None:
                check_owner(self._storage, self._lock.token)
            if self._storage.can_rename:
                self._storage.make_folder(folder)
            else:
                self._storage.remove(folder)  # files of an old save must not end up in the new one
        except (EngineError, OSError) as error:
            return str(error)
        return ""

    def _remove_failed(self, *, exclude: str = "") -> None:
        """Remove the files of failed saves. Call this when no rank writes to them any more."""
        if self._context.is_main and self._lock is not None:
            # if the storage fails here, the next save reports it
            with contextlib.suppress(OSError, EngineError):
                check_owner(self._storage, self._lock.token)
                remove_half_written(self._storage, exclude=exclude)
                remove_unfinished(self._storage, self._leftovers - {exclude})

    def _count_failure(self, errors: list[str]) -> None:
        """Log one failed save, and raise after two in a row. All ranks must pass the same errors."""
        self._num_failures = self._num_failures + 1 if errors else 0
        if stale := [error for error in errors if STALE in error]:
            raise EngineError(
                f"a checkpoint was not saved: {stale[0]}",
                hint="this training stops, so that it does not interfere with the other one",
            )
        if self._num_failures > _FAILURES_ACCEPTED:
            raise EngineError(
                f"{self._num_failures} checkpoints in a row were not saved: {errors[0]}",
                hint=self._space_hint,
            )
        if errors and self._context.is_main:
            logger.error("a checkpoint was not saved, training continues: %s", errors[0])

    @property
    def _space_hint(self) -> str:
        return f"check that {self._storage.root} has free space and that all ranks can access it"

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
        if os.getpid() == self._owner:  # not in a fork of the trainer
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
    """Return the id of the Windlass job that this process is a rank of, or "" outside of jobs."""
    return os.environ.get(names.JOB_ID, "")


def _check_facts(facts: Mapping[str, Any]) -> None:
    try:
        json.dumps(dict(facts))
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"checkpoint facts must be JSON-serializable: {error}",
            hint="pass tensors and objects in the state, and only JSON values in the facts",
        ) from error
