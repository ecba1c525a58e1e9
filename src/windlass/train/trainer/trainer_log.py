"""Log of a training run: loss, gradient norm, learning rate and meters, for trackers and callbacks.

`TorchTrainer` uses it. The numbers of a step are read during the next one, so that no step waits for them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windlass.errors import SpecError
from windlass.train.trackers import TrackerGroup
from windlass.train.trainer.meters import OF_EACH_RANK, Meters, spread_over_ranks
from windlass.train.trainer.step_update import NUM_SUMS, LateValues, StepSums

if TYPE_CHECKING:
    from windlass.train.trainer.torch_trainer import TorchTrainer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    step: int
    epoch: int
    sums: LateValues
    metrics: dict[str, float]
    metric_names: tuple[str, ...]


class TrainLog:
    """Log of one training run on this rank."""

    def __init__(
        self, trainer: TorchTrainer, sums: StepSums, meters: Meters, trackers: TrackerGroup
    ) -> None:
        self._trainer = trainer
        self._sums = sums
        self._meters = meters
        self._trackers = trackers
        self._pending: _Pending | None = None
        self._logged_step = trainer.progress.step
        self.data_wait_s = 0.0
        self.loss: float | None = None

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the metrics that `train_step` returns."""
        return self._sums.metric_names

    def step_done(self, step: Any) -> None:
        """Record a finished step.

        Every `log_every` steps, start collecting metrics, logged one step later.
        """
        options, progress = self._trainer.options, self._trainer.progress
        tokens = step.global_samples * (options.tokens_per_sample or 0)
        self._meters.step(tokens=tokens, samples=step.global_samples, data_wait_s=self.data_wait_s)
        self._log_pending()
        if progress.step % options.log_every == 0:
            self._request()

    def _request(self) -> None:
        progress = self._trainer.progress
        rate = float(self._trainer.optimizer.param_groups[0]["lr"])
        reading = self._meters.read()
        self._pending = _Pending(
            step=progress.step,
            epoch=progress.epoch,
            sums=self._sums.take([reading.get(name, 0.0) for name in OF_EACH_RANK]),
            metrics={"lr": rate, **reading},
            metric_names=self.metric_names,
        )

    def _log_pending(self) -> None:
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        trainer, world_size = self._trainer, self._trainer.context.world_size
        numbers = pending.sums.read()
        num_own = NUM_SUMS + len(pending.metric_names)
        means = [number / world_size for number in numbers[:num_own]]
        loss_sum, norm_sum, num_steps, num_skipped = means[:NUM_SUMS]
        self._logged_step = pending.step
        self._warn_of_skipped(round(num_skipped), pending.step)
        self.loss = loss_sum / num_steps if num_steps else float("nan")
        metrics = {
            "loss": self.loss,
            "grad_norm": norm_sum / num_steps if num_steps else float("nan"),
            "epoch": pending.epoch,
            "skipped_steps": trainer.progress.num_skipped,
            **pending.metrics,
            **(_spread(numbers[num_own:]) if world_size > 1 else {}),
        }
        for name, value in zip(pending.metric_names, means[NUM_SUMS:], strict=True):
            if name in metrics:
                raise SpecError(
                    f"train_step returned a metric {name!r}, which the trainer logs itself",
                    hint="choose another name for it",
                )
            metrics[name] = value / num_steps if num_steps else float("nan")
        self._trackers.log(metrics, step=pending.step)
        trainer.context.report(step=pending.step, total=trainer.total_steps, loss=self.loss)
        for callback in trainer.callbacks:
            callback.on_log(trainer, pending.step, metrics)

    def _warn_of_skipped(self, count: int, step: int) -> None:
        if count:
            self._trainer.progress.num_skipped += count
            logger.warning(
                "%d of the steps up to %d were skipped, because their gradients were Inf or NaN",
                count,
                step,
            )

    def validation_done(self, metrics: Mapping[str, float]) -> None:
        """Log a validation. Its duration does not count as step time."""
        self._meters.skip()
        values = {f"val_{name}": value for name, value in metrics.items()}
        self._trackers.log(values, step=self._trainer.progress.step)

    def pause_done(self) -> None:
        """Exclude the time since the last step from step times."""
        self._meters.skip()

    def settle(self) -> None:
        """Write the available numbers before a checkpoint, so that a kill does not lose them."""
        if self._pending is not None and self._pending.sums.is_ready:
            self._log_pending()
        self._trackers.settle()

    def flush(self) -> None:
        """Log the steps since the last log line."""
        self._log_pending()
        if self._logged_step < self._trainer.progress.step:
            self._request()
            self._log_pending()


def _spread(numbers: list[float]) -> dict[str, float]:
    """Return the spread of all ranks' numbers, which are given rank after rank."""
    width = len(OF_EACH_RANK)
    rows = (numbers[start : start + width] for start in range(0, len(numbers), width))
    return spread_over_ranks([dict(zip(OF_EACH_RANK, row, strict=True)) for row in rows])
