"""Progress of a training run, and the contents of its checkpoints besides the state of the objects.

`Saver` has the settings and the state, but not the trainer. `Checkpoints` writes the files. The facts of a
checkpoint are the progress and the settings that the order of samples depends on. A resume compares them and
warns if it cannot be exact.

Modules that a subclass keeps as attributes are neither trained nor saved. That is right for a frozen teacher,
and wrong for a loss with parameters or a running mean of the weights. `AttributeChecks` warns of those two.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from windlass import names
from windlass.errors import SpecError
from windlass.train.checkpoint.checkpoint_load import FROM_SCRATCH
from windlass.train.checkpoint.checkpoints import Checkpoints
from windlass.train.checkpoint.training_state import derive_rng
from windlass.train.parallel.context import Context
from windlass.train.parallel.shape import Shape
from windlass.train.trainer.optimizers import find_further, find_steppers
from windlass.train.trainer.trainer_options import TrainerOptions

if TYPE_CHECKING:
    from windlass.train.trainer.torch_trainer import TorchTrainer


logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class TrainProgress:
    """Progress of a run after its last step. Only the trainer changes it."""

    step: int = 0  # optimizer steps done
    epoch: int = 0  # epochs done
    best: float | None = None
    best_step: int | None = None
    bad_validations: int = 0  # number of consecutive validations without improvement
    num_skipped: int = 0  # steps skipped because of their gradients
    validation: dict[str, float] = field(default_factory=dict)  # metrics of the last validation

    def judge(self, value: float, *, mode: str) -> bool:
        """Record a validation and return whether it is the best so far. NaN and Inf never are."""
        is_best = math.isfinite(value) and (
            self.best is None or (value < self.best if mode == "min" else value > self.best)
        )
        if is_best:
            self.best, self.best_step, self.bad_validations = value, self.step, 0
        else:
            self.bad_validations += 1
        return is_best

    def to_facts(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> TrainProgress:
        return cls(**{f.name: facts[f.name] for f in fields(cls) if f.name in facts})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """Result of a training run, which is the same on every rank."""

    step: int
    epoch: int
    loss: float | None  # mean over the steps of the last log line
    validation: dict[str, float]
    best: float | None
    best_step: int | None
    num_skipped: int
    resumed_from: int | None  # step of the checkpoint that this process resumed from
    folder: str  # <out>/<run>
    is_stopped_early: bool = False
    test: dict[str, float] = field(default_factory=dict)  # metrics of the data for `execute`


class AttributeChecks:
    """Checks for attributes of a trainer that would be neither trained nor saved."""

    def __init__(self, trainer: TorchTrainer) -> None:
        self._trainer = trainer
        self._steppers = find_steppers(trainer)
        self._warned: set[tuple[str, str]] = set()
        self._changes = {name: _count_changes(module) for name, module in self._modules()}

    def refuse_late_parts(self) -> None:
        """Refuse optimizers and schedulers that were set too late to be used and saved."""
        for name, value in find_steppers(self._trainer).items():
            if self._steppers.get(name) is not value:
                raise SpecError(
                    f"self.{name} was set after {type(self._trainer).__name__}'s parts were made, "
                    "so the trainer does not use it and checkpoints do not contain it",
                    hint="set it in create_model_loss_optimizer",
                )

    def warn_of_modules(self) -> None:
        """Warn once about each module that changes unsaved, or gets gradients but has no optimizer."""
        for name, module in self._modules():
            if _count_changes(module) != self._changes.setdefault(name, _count_changes(module)):
                self._warn_once(
                    name,
                    "changes during training, but checkpoints do not contain it",
                    "keep it in a callback with state_dict and load_state_dict",
                )
            if self._has_unused_gradients(module):
                self._warn_once(
                    name,
                    "has parameters that get gradients, but no optimizer trains them",
                    "set self.loss to it or make it part of the model, or call "
                    "requires_grad_(False) if it should not learn",
                )

    def _modules(self) -> Iterator[tuple[str, nn.Module]]:
        trainer = self._trainer
        known = {
            id(part)
            for module in (trainer.model, trainer.loss)
            if isinstance(module, nn.Module)
            for part in module.modules()
        }
        for name, value in list(vars(trainer).items()):
            if isinstance(value, nn.Module) and id(value) not in known:
                yield name, value

    def _has_unused_gradients(self, module: nn.Module) -> bool:
        optimizers = [self._trainer.optimizer, *find_further(self._trainer).values()]
        trained = {
            parameter
            for optimizer in optimizers
            if isinstance(optimizer, Optimizer)
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        return any(p.grad is not None and p not in trained for p in module.parameters())

    def _warn_once(self, name: str, what: str, hint: str) -> None:
        if (name, what) not in self._warned and self._trainer.context.is_main:
            kind = type(self._trainer).__name__
            logger.warning("%s: self.%s %s; hint: %s", kind, name, what, hint)
        self._warned.add((name, what))


def _count_changes(module: nn.Module) -> int:
    """Return how often the tensors of a module's state were written."""
    tensors = [*module.parameters(), *module.buffers()]
    return sum(tensor._version for tensor in tensors if not tensor.is_inference())  # noqa: SLF001


class Saver:
    """Saver and loader of one training run's state."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        state: Mapping[str, Any],
        *,
        added: Mapping[str, Any],
        options: TrainerOptions,
        context: Context,
        shape: Shape,
        order: Mapping[str, Any],
        identity: Mapping[str, str],
    ) -> None:
        """Save `state` and `added`.

        added: entries that checkpoints of earlier versions lack. Such checkpoints still load.
        order: settings that determine the order of the samples.
        identity: values that must match those in a checkpoint.
        """
        self._checkpoints = checkpoints
        self._state = {**state, **added}
        self._added = frozenset(added)
        self._options = options
        self._context = context
        self._shape = shape
        self._order = order
        self._identity = identity
        self._safe_step: int | None = None
        self._saved_s = time.monotonic()
        # the optimizer keeps these settings in its own state
        self._rates: dict[str, Any] = {"lr": options.lr, "weight_decay": options.weight_decay}
        self.saved_step: int | None = None
        self.resumed_from: int | None = None
        self.run_ids: dict[str, str] = {}

    @property
    def is_time_up(self) -> bool:
        """True if `checkpoint_every` is a time and has passed since the last save."""
        every_s = self._options.checkpoint_every_s
        return every_s is not None and time.monotonic() - self._saved_s >= every_s

    def load(self) -> TrainProgress | None:
        """Load the newest checkpoint. Return its progress, or None if there is no checkpoint."""
        resume = self._options.resume or self._is_restart()
        if self._options.saves:
            self._checkpoints.claim(fresh=not resume)  # fail now, not at the first save
        else:  # trackers write to the folder even without checkpoints
            self._checkpoints.refuse_foreign()
        self._safe_step = self._checkpoints.safe_step
        if not resume:
            return None
        wanted = dict(self._state)

        def check(facts: Mapping[str, Any], step: int) -> None:
            self._refuse_others(facts, step)
            missing = self._added - frozenset(facts.get("entries") or ())
            wanted.clear()
            wanted.update({k: v for k, v in self._state.items() if k not in missing})

        loaded = self._checkpoints.load(wanted, check=check)
        if loaded is None:
            return None
        facts = dict(loaded.facts)
        progress = TrainProgress.from_facts(facts)
        if self._context.is_main:
            saved = frozenset(facts.get("entries") or ())
            self._warn_of_entries(frozenset(wanted), saved, loaded.step)
            self._warn_of_changes(facts, progress.step)
        self.run_ids = dict(facts.get("run_ids") or {})
        self._rates = {name: facts.get(name, rate) for name, rate in self._rates.items()}
        if not loaded.is_rng_restored or facts.get("shape", str(self._shape)) != str(self._shape):
            # The old states belong to other ranks. Ranks that share layers derive the same states.
            derive_rng(
                seed=self._options.seed,
                step=loaded.step,
                rank=self._context.rank // self._shape.tp,
                world_size=self._shape.data_ranks,
            )
        self.saved_step = self.resumed_from = loaded.step
        return progress

    def _refuse_others(self, facts: Mapping[str, Any], step: int) -> None:
        """Reject a checkpoint of another training run. Old checkpoints may lack the identity and pass."""
        saved = facts.get("identity") or {}
        for name, now in self._identity.items():
            if saved.get(name, now) != now:
                raise SpecError(
                    f"{name} is {now}, but was {saved[name]} when step {step} was saved",
                    hint=FROM_SCRATCH,
                )

    def _warn_of_entries(self, loaded: frozenset[str], saved: frozenset[str], step: int) -> None:
        """Warn of state that a checkpoint lacks, and of saved state that is not used."""
        for name in sorted(self._added - loaded):
            logger.warning(
                "step %d has no state of %s, which starts from scratch", step, _describe(name)
            )
        for name in sorted(saved - self._state.keys()):
            logger.warning("the state of %s in step %d is not used", _describe(name), step)

    def _warn_of_changes(self, saved: Mapping[str, Any], step: int) -> None:
        """Warn of settings that make a resume inexact."""
        for settings, consequence in (
            (self._order, "samples come in a different order"),
            (self._rates, "the optimizer keeps the saved value"),
        ):
            for name, now in settings.items():
                if name in saved and saved[name] != now:
                    logger.warning(
                        "%s is %s, but was %s when step %d was saved: %s",
                        *(name, now, saved[name], step, consequence),
                    )

    def _is_restart(self) -> bool:
        """Return whether an earlier attempt of this job saved the newest checkpoint. It is always resumed."""
        job = read_launch_id(os.environ)
        is_restart = bool(job) and self._context.attempt > 0
        is_own = is_restart and self._checkpoints.newest_facts.get("job") == job
        return bool(self._context.broadcast(is_own))

    def save(
        self, progress: TrainProgress, *, epoch: int | None, run_ids: Mapping[str, str], block: bool
    ) -> None:
        """Save after this step. `block` waits until the checkpoint is complete."""
        self._checkpoints.save(
            self._state,
            step=progress.step,
            epoch=epoch,
            facts={
                **progress.to_facts(),
                **self._order,
                **self._rates,
                "identity": self._identity,
                "entries": sorted(self._state),
                "run_ids": run_ids,
                "job": read_launch_id(os.environ),
                "shape": str(self._shape),
            },
            block=block,
            timeout_s=self._context.preemption.save_limit_s,
        )
        self.saved_step, self._saved_s = progress.step, time.monotonic()

    def mark_best(self, step: int, value: float) -> None:
        self._checkpoints.mark_best(step, value)

    def take_safe_step(self) -> int | None:
        """Return the step of a checkpoint completed since the last call. None except on the main rank."""
        step = self._checkpoints.safe_step
        if step is None or step == self._safe_step or not self._context.is_main:
            return None
        self._safe_step = step
        return step

    def prepare(self) -> None:
        """Prepare the first save in advance, because that is slow."""
        if self._options.saves and not self._shape.is_deepspeed:
            self._checkpoints.prepare(self._state)

    def close(self, *, timeout_s: float | None = None) -> None:
        self._checkpoints.close(timeout_s=timeout_s)


def _describe(entry: str) -> str:
    """Return the user-facing name of a state's entry."""
    return f"self.{entry[4:]}" if entry.startswith("own.") else f"the {entry}"


def read_launch_id(environ: Mapping[str, str]) -> str:
    """Return the id that all attempts of one launch share, by Windlass or torchrun, or an empty string."""
    job = environ.get(names.JOB_ID) or environ.get(names.TORCHELASTIC_RUN_ID, "")
    return "" if job == "none" else job  # torchrun's default for a run without an id
