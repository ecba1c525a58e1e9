"""When and what a trainer saves, and how it finds its way back.

Held by `TorchTrainer`; files are `checkpoints`' business. The facts of a checkpoint hold the progress and
what the order of samples depends on, so that a resume that cannot be exact says so.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from windlass import names
from windlass.errors import SpecError
from windlass.train.checkpoint_load import FROM_SCRATCH
from windlass.train.checkpoint_rng import derive_rng
from windlass.train.checkpoints import Checkpoints
from windlass.train.own_modules import OwnModules
from windlass.train.trackers import TrackerGroup
from windlass.train.trainer_parts import find_steppers
from windlass.train.trainer_progress import TrainProgress

if TYPE_CHECKING:
    from windlass.train.trainer import TorchTrainer

logger = logging.getLogger(__name__)


class Saver:
    """Saves one trainer's state, and loads it."""

    def __init__(
        self,
        trainer: TorchTrainer,
        checkpoints: Checkpoints,
        state: Mapping[str, Any],
        *,
        later: Mapping[str, Any],
    ) -> None:
        """Save `state` and `later`; a checkpoint may lack entries of `later` and still be loaded."""
        self._trainer = trainer
        self._checkpoints = checkpoints
        self._state = {**state, **later}
        self._later = frozenset(later)
        self._steppers = find_steppers(trainer)
        self._own_modules = OwnModules(trainer)
        self._saved_step: int | None = None
        self._safe_step: int | None = None
        self._saved_s = time.monotonic()
        self._identity = trainer.identity()  # once: files may be looked into
        self._rates = self._rate_facts()  # those that the optimizer has
        self.run_ids: dict[str, str] = {}
        self.trackers: TrackerGroup | None = None

    @property
    def is_time_up(self) -> bool:
        every_s = self._trainer.options.checkpoint_every_s
        return every_s is not None and time.monotonic() - self._saved_s >= every_s

    def check_parts(self) -> None:
        """Refuse optimizers and schedulers that were set too late to be used and saved."""
        for name, value in find_steppers(self._trainer).items():
            if self._steppers.get(name) is not value:
                raise SpecError(
                    f"self.{name} was set after {type(self._trainer).__name__}'s parts were made, "
                    "so the trainer does not use it and checkpoints do not have it",
                    hint="set it in create_model_loss_optimizer",
                )

    def load(self) -> int | None:
        """Load the newest checkpoint; its step, or None where there is none."""
        resume = self._trainer.options.resume or self._is_restart()
        if self._trainer.options.saves:
            self._checkpoints.claim(fresh=not resume)  # now, not after the first hour
        else:  # trackers write to the folder in any case
            self._checkpoints.refuse_foreign()
        self._safe_step = self._checkpoints.safe_step
        if not resume:
            return None
        wanted = dict(self._state)

        def check(facts: Mapping[str, Any], step: int) -> None:
            self._refuse_others(facts, step)
            missing = self._later - frozenset(facts.get("entries") or ())
            wanted.clear()
            wanted.update({k: v for k, v in self._state.items() if k not in missing})

        loaded = self._checkpoints.load(wanted, check=check)
        if loaded is None:
            return None
        facts = dict(loaded.facts)
        self._warn_of_entries(frozenset(wanted), frozenset(facts.get("entries") or ()), loaded.step)
        self._trainer.progress = TrainProgress.from_facts(facts)
        self.run_ids = dict(facts.get("run_ids") or {})
        self._warn_of_changes(facts, self._order_facts(), "samples come in another order")
        self._warn_of_changes(
            facts, self._rates, "the optimizer goes on with what it was saved with"
        )
        self._rates = {name: facts.get(name, rate) for name, rate in self._rates.items()}
        if not loaded.is_rng_restored or facts.get("shape", self._shape) != self._shape:
            self._derive_rng(loaded.step)
        self._saved_step = loaded.step
        return int(loaded.step)

    @property
    def _shape(self) -> str:
        return str(self._trainer.shape)

    def _derive_rng(self, step: int) -> None:
        """Random numbers for ranks that were others when this was saved; alike where layers are split."""
        shape, context = self._trainer.shape, self._trainer.context
        derive_rng(
            seed=self._trainer.options.seed,
            step=step,
            rank=context.rank // shape.tp,
            world_size=shape.data_ranks,
        )

    def _refuse_others(self, facts: Mapping[str, Any], step: int) -> None:
        """Refuse a checkpoint of a training that was another one; an old one may not say."""
        saved = facts.get("identity") or {}
        for name, now in self._identity.items():
            if saved.get(name, now) != now:
                raise SpecError(
                    f"{name} was another when step {step} was saved: {saved[name]}, and is {now} now",
                    hint=FROM_SCRATCH,
                )

    def _warn_of_entries(self, loaded: frozenset[str], saved: frozenset[str], step: int) -> None:
        """Warn of state that a checkpoint lacks, and of state in it that nothing takes."""
        if not self._trainer.context.is_main:
            return
        for name in sorted(self._later - loaded):
            logger.warning("step %d has no state of %s, which begins anew", step, _describe(name))
        for name in sorted(saved - self._state.keys()):
            logger.warning("the state of %s in step %d is not used", _describe(name), step)

    def _warn_of_changes(
        self, saved: Mapping[str, Any], now: Mapping[str, Any], consequence: str
    ) -> None:
        if not self._trainer.context.is_main:
            return
        for name in now:
            if name in saved and saved[name] != now[name]:
                logger.warning(
                    "%s was %s when step %d was saved and is %s now: %s",
                    name,
                    saved[name],
                    self._trainer.progress.step,
                    now[name],
                    consequence,
                )

    def _is_restart(self) -> bool:
        """Whether the newest checkpoint is of an earlier attempt of this job, which resume=False keeps."""
        context = self._trainer.context
        job = find_job(os.environ)
        is_own = (
            bool(job) and context.attempt > 0 and self._checkpoints.newest_facts.get("job") == job
        )
        return bool(context.broadcast(is_own))

    def save(self, step: Any, *, is_best: bool, block: bool) -> None:
        """Save after this step; `block`: return when it is whole, since the process ends then."""
        trainer, progress = self._trainer, self._trainer.progress
        if not trainer.options.saves:
            return
        if self._saved_step != progress.step:
            self.check_parts()
            self._own_modules.warn()
            trainer.parts.log.settle()
            trainer.share_buffers()
            run_ids = self.run_ids if self.trackers is None else self.trackers.run_ids
            facts = {**progress.to_facts(), **self._order_facts(), **self._rates}
            self._checkpoints.save(
                self._state,
                step=progress.step,
                epoch=progress.epoch if step.is_last_of_epoch else None,
                facts={
                    **facts,
                    "identity": self._identity,
                    "entries": sorted(self._state),
                    "run_ids": run_ids,
                    "job": find_job(os.environ),
                    "shape": self._shape,
                },
                block=block,
                timeout_s=trainer.context.preemption.save_limit_s,
            )
            self._saved_step, self._saved_s = progress.step, time.monotonic()
            for callback in trainer.callbacks:
                callback.on_checkpoint(trainer, progress.step)
        if is_best and progress.best is not None:
            self._checkpoints.mark_best(progress.step, progress.best)
        trainer.parts.log.pause_done()

    def tell_safe(self) -> None:
        """Tell the callbacks of rank 0 once a new checkpoint is whole."""
        step = self._checkpoints.safe_step
        if step is not None and step != self._safe_step and self._trainer.context.is_main:
            self._safe_step = step
            for callback in self._trainer.callbacks:
                callback.on_saved(self._trainer, step)

    def prepare(self) -> None:
        """After the first step: what would make the first save slow, where saves are to come often."""
        self._own_modules.warn()
        if self._trainer.options.saves and not self._trainer.shape.is_deepspeed:
            self._checkpoints.prepare(self._state)

    def close(self, *, timeout_s: float | None = None) -> None:
        self._checkpoints.close(timeout_s=timeout_s)

    def _order_facts(self) -> dict[str, Any]:
        """What the order of the samples is a function of."""
        loader = self._trainer.train_dataloader
        return {
            "seed": self._trainer.options.seed,
            "batch": loader.batch,
            "num_samples": loader.num_samples,
        }

    def _rate_facts(self) -> dict[str, Any]:
        """Settings that an optimizer takes once, and then keeps in its own state."""
        options = self._trainer.options
        return {"lr": options.lr, "weight_decay": options.weight_decay}


def _describe(entry: str) -> str:
    """Name an entry of a state as users call it."""
    return f"self.{entry[4:]}" if entry.startswith("own.") else f"the {entry}"


def find_job(environ: Mapping[str, str]) -> str:
    """What all attempts of one start have in common, by Windlass or torchrun; empty where nothing tells."""
    job = environ.get(names.JOB_ID) or environ.get(names.TORCHELASTIC_RUN_ID, "")
    return "" if job == "none" else job  # torchrun's word where nobody named the run
