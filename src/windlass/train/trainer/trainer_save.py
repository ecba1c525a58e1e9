"""When and what a trainer saves, how it finds its way back, and how far it has come.

Held by `TorchTrainer`; files are `checkpoints`' business. The facts of a checkpoint hold the progress (step,
best validation, patience) and what the order of samples depends on, so that a resume that cannot be exact
says so. Modules that a subclass keeps as attributes are neither trained nor saved: right for a frozen
teacher, and wrong for a loss with parameters or a running mean of the weights, so `OwnModules` warns of
those two.

A callback takes part in checkpoints by overriding `Callback.state_dict` and `load_state_dict`: tensors and
plain values, which load without running code. Loaded states wait in `CallbackStates` until `on_start` was
called, so that a callback may make its objects there and fill them afterwards.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from windlass import names
from windlass.errors import SpecError
from windlass.train.checkpoint.checkpoint_load import FROM_SCRATCH
from windlass.train.checkpoint.checkpoints import Checkpoints
from windlass.train.checkpoint.training_state import derive_rng
from windlass.train.trackers import TrackerGroup
from windlass.train.trainer.callbacks import Callback
from windlass.train.trainer.optimizers import find_further, find_steppers

if TYPE_CHECKING:
    from windlass.train.trainer.torch_trainer import TorchTrainer


logger = logging.getLogger(__name__)
ENTRY = "callbacks"  # in a checkpoint's state
_PLAIN = (bool, int, float, str, type(None))


@dataclass(slots=True, kw_only=True)
class TrainProgress:
    """Where a run stands after its last step; changed by the trainer alone."""

    step: int = 0  # optimizer steps done
    epoch: int = 0  # epochs done
    best: float | None = None
    best_step: int | None = None
    bad_validations: int = 0  # in a row
    num_skipped: int = 0  # steps left out for their gradients
    validation: dict[str, float] = field(default_factory=dict)  # the last one's

    def judge(self, value: float, *, mode: str) -> bool:
        """Note a validation; True if it is the best so far. What is not a number never is."""
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
    """What a training came to; the same on every rank."""

    step: int
    epoch: int
    loss: float | None  # mean over the steps of the last log line
    validation: dict[str, float]
    best: float | None
    best_step: int | None
    num_skipped: int
    resumed_from: int | None  # the step of the checkpoint that this process went on from
    folder: str  # <out>/<run>
    is_stopped_early: bool = False
    test: dict[str, float] = field(default_factory=dict)  # of test data that `execute` was given


class OwnModules:
    """Modules among a trainer's attributes that are no part of its model or loss."""

    def __init__(self, trainer: TorchTrainer) -> None:
        self._trainer = trainer
        self._warned: set[tuple[str, str]] = set()
        self._changes = {name: _count_changes(module) for name, module in self._modules()}

    def warn(self) -> None:
        """Warn once of each module that gets gradients in vain, or changes without being saved."""
        for name, module in self._modules():
            if _count_changes(module) != self._changes.setdefault(name, _count_changes(module)):
                self._warn_once(
                    name,
                    "changes while it trains, and checkpoints do not have it",
                    "keep it in a callback with state_dict and load_state_dict",
                )
            if self._is_trained_in_vain(module):
                self._warn_once(
                    name,
                    "has parameters that get gradients, and no optimizer trains them",
                    "set self.loss to it or make it part of the model; "
                    "requires_grad_(False) if it is not to learn",
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

    def _is_trained_in_vain(self, module: nn.Module) -> bool:
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
    """Return how often the tensors of a module's state were written to."""
    tensors = [*module.parameters(), *module.buffers()]
    return sum(tensor._version for tensor in tensors if not tensor.is_inference())  # noqa: SLF001


class CallbackStates:
    """The states of all callbacks that have one, as one entry of a checkpoint."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks: dict[str, Callback] = {}
        for callback in callbacks:
            read = getattr(type(callback), "state_dict", Callback.state_dict)
            if read is not Callback.state_dict:
                kind = type(callback).__name__
                same = sum(type(one).__name__ == kind for one in self._callbacks.values())
                self._callbacks[f"{kind}-{same + 1}" if same else kind] = callback
        self._loaded: dict[str, Any] | None = None

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def state_dict(self) -> dict[str, Any]:
        """Return each callback's state by its class name; raise for what cannot be saved safely."""
        return {
            name: _check(name, "state_dict()", callback.state_dict())
            for name, callback in self._callbacks.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep what a checkpoint has until `deliver`."""
        self._loaded = dict(state)

    def deliver(self) -> None:
        """Give the loaded states to the callbacks; called once, after `on_start`."""
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            return
        for name, callback in self._callbacks.items():
            if name in loaded:
                callback.load_state_dict(_place_like(loaded.pop(name), _present(callback)))
            else:
                logger.warning("the checkpoint has no state of the callback %s", name)
        for name in loaded:
            logger.warning("the checkpoint has state of a callback %s, which is not here", name)


def _check(callback: str, place: str, value: Any) -> Any:
    """Return the value with plain dicts; raise if there is more than tensors and JSON in it."""
    if isinstance(value, _PLAIN) and type(value) in _PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, Mapping) and all(type(key) in (str, int) for key in value):
        return {key: _check(callback, f"{place}[{key!r}]", item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(
            _check(callback, f"{place}[{index}]", item) for index, item in enumerate(value)
        )
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    raise SpecError(
        f"the state of the callback {callback} cannot be saved: {place} is a {kind}",
        hint="checkpoints hold tensors, numbers, text, and dicts (keys: text or whole numbers) and lists "
        "of these; convert it in state_dict() and back in load_state_dict()",
    )


def _present(callback: Callback) -> Any:
    """Return a callback's state before a load; None if it has none yet."""
    try:
        return callback.state_dict()
    except (AttributeError, KeyError, TypeError):  # made with the first step
        return None


def _place_like(loaded: Any, present: Any) -> Any:
    """Put loaded tensors where the callback's present ones are, on a device or in shards."""
    if isinstance(loaded, torch.Tensor) and isinstance(present, torch.Tensor):
        if loaded.shape != present.shape:
            return loaded
        whole = loaded.to(present.device)
        if not isinstance(present, DTensor):
            return whole
        return distribute_tensor(whole, present.device_mesh, present.placements, src_data_rank=None)
    if isinstance(loaded, dict) and isinstance(present, Mapping):
        return {key: _place_like(item, present.get(key)) for key, item in loaded.items()}
    is_list = isinstance(loaded, list | tuple) and isinstance(present, list | tuple)
    if is_list and len(loaded) == len(present):
        return type(loaded)(map(_place_like, loaded, present))
    return loaded


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
        job = read_launch_id(os.environ)
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
                    "job": read_launch_id(os.environ),
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


def read_launch_id(environ: Mapping[str, str]) -> str:
    """What all attempts of one start have in common, by Windlass or torchrun; empty where nothing tells."""
    job = environ.get(names.JOB_ID) or environ.get(names.TORCHELASTIC_RUN_ID, "")
    return "" if job == "none" else job  # torchrun's word where nobody named the run
