"""Status of a job in the lead, and the status file that clients read.

The lead updates it after every event. The file is written immediately when the phase changes, and
otherwise at most ten times a second. This module makes no decisions.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import time
from dataclasses import replace
from typing import Any

from windlass import names
from windlass.plan.plan import Plan
from windlass.wire.job_folder import JobFolder, write_atomically
from windlass.wire.message import Metric
from windlass.wire.messages.ranks import RankReport
from windlass.wire.states import MomentName
from windlass.wire.status import (
    Condition,
    Moment,
    Phase,
    Progress,
    Verdict,
    make_first_status,
    make_ranks,
    render_status,
    render_world,
)

logger = logging.getLogger(__name__)

_EVERY_S = 0.1
_RESERVE_BYTES = 32 << 10
_MAX_METRICS = 256  # per rank, because clients read the status file often
_MAX_CONDITIONS = 500


class _RankReports:
    """Latest reports of one rank in this attempt: its step, and each metric with its step."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.total: int | None = None
        self.metrics: dict[str, tuple[Metric, int | None]] = {}

    def add(self, report: RankReport) -> None:
        self.step = self.step if report.step is None else report.step
        self.total = self.total if report.total is None else report.total
        metrics = {name: (value, report.step) for name, value in report.metrics.items()}
        self.metrics = dict(list({**self.metrics, **metrics}.items())[-_MAX_METRICS:])


class StatusWriter:
    """Writer of the job status. `status` is replaced at every change."""

    def __init__(self, plan: Plan, folder: JobFolder) -> None:
        self._plan = plan
        self._folder = folder
        self._timer: asyncio.TimerHandle | None = None
        self._reports: dict[int, _RankReports] = {}
        self._first_step: tuple[int, float] | None = None
        self._not_finite: set[str] = set()  # metrics that were NaN or Inf in this attempt
        self.status = make_first_status(plan)
        self._keep_reserve()

    @property
    def folder(self) -> JobFolder:
        return self._folder

    def resize(self, plan: Plan) -> None:
        """Change the nodes to those of `plan`. Nodes that stay keep their status."""
        self._plan = plan
        known = {node.index: node for node in self.status.nodes}
        nodes = tuple(known.get(n.index) or n for n in make_first_status(plan).nodes)
        self._set(nodes=nodes, num_nodes=len(nodes), num_ranks=plan.num_ranks)

    def set_phase(self, phase: Phase, reason: str, message: str) -> None:
        """Set the phase, add a condition with the reason, and write the file immediately."""
        condition = Condition(type=phase.value, reason=reason, message=message, since_s=time.time())
        ended_at_s = time.time() if phase.is_final else None
        self._set(
            phase=phase, ended_at_s=ended_at_s, conditions=(*self.status.conditions, condition)
        )
        self.write()

    def add_condition(self, kind: str, reason: str, message: str) -> None:
        """Add a condition that does not change the phase. Repeated conditions are ignored."""
        known = self.status.conditions
        if len(known) >= _MAX_CONDITIONS or (reason, message) in (
            (c.reason, c.message) for c in known
        ):
            return
        condition = Condition(type=kind, reason=reason, message=message, since_s=time.time())
        self._set(conditions=(*self.status.conditions, condition))

    def mark(self, name: MomentName, at_s: float | None = None) -> None:
        """Record the time of an event in the timeline. Only its first occurrence counts."""
        if all(moment.name != name for moment in self.status.timeline):
            moments = (*self.status.timeline, Moment(name=name, at_s=at_s or time.time()))
            self._set(timeline=tuple(sorted(moments, key=lambda moment: moment.at_s)))

    def set_node(self, index: int, **fields: Any) -> None:
        nodes = list(self.status.nodes)
        nodes[index] = replace(nodes[index], **fields)
        self._set(nodes=tuple(nodes))

    def set_rank(self, rank: int, **fields: Any) -> None:
        ranks = list(self.status.ranks)
        ranks[rank] = replace(ranks[rank], **fields)
        self._set(ranks=tuple(ranks))

    def start_attempt(self, attempt: int, world: Plan) -> None:
        """Start a new generation of ranks, on the nodes of `world`."""
        self._forget_progress()
        ranks = make_ranks(world)
        self._set(attempt=attempt, ranks=ranks, num_ranks=len(ranks))
        if world is not self._plan:
            self.keep_world(attempt, world)

    def _forget_progress(self) -> None:
        self._reports.clear()
        self._first_step = None
        self._not_finite.clear()
        self._set(progress=Progress())

    def keep_world(self, attempt: int, world: Plan) -> None:
        """Save which node runs which rank, for attempts whose nodes differ from those in the plan."""
        try:
            self._folder.make_attempt(attempt)
            write_atomically(self._folder.world(attempt), render_world(world))
        except OSError as error:
            logger.warning("world of attempt %s: %s", attempt, error)

    def restore(self, history: tuple[Verdict, ...], timeline: tuple[Moment, ...]) -> None:
        """Restore the history and timeline of an earlier lead. New events of this lead stay."""
        known = {moment.name for moment in timeline}
        later = [moment for moment in self.status.timeline if moment.name not in known]
        moments = sorted((*timeline, *later), key=lambda moment: moment.at_s)
        self._set(history=history, timeline=tuple(moments))

    def set_verdict(self, verdict: Verdict, *, final: bool) -> None:
        if final:
            self._set(verdict=verdict)
        else:
            self._set(history=(*self.status.history, verdict))
            self._forget_progress()
        self.write()

    def report(self, report: RankReport) -> None:
        """Record a rank's report, and update its step and the progress of the attempt."""
        rank, step = report.rank, report.step
        if not 0 <= rank < len(self.status.ranks):
            return
        self._reports.setdefault(rank, _RankReports()).add(report)
        self._warn_of_nan(report)
        if step is not None:
            self.set_rank(rank, step=step)
            self.mark(MomentName.FIRST_STEP, report.at_s)
        self._set(progress=self._make_progress(report.at_s))

    def _make_progress(self, at_s: float) -> Progress:
        """Return the step of the rank that is furthest behind, with metrics of this rank only."""
        reports = self._reports
        steps = {rank: known.step for rank, known in reports.items() if known.step is not None}
        totals = [known.total for known in reports.values() if known.total is not None]
        rank = min(steps, key=lambda rank: (steps[rank], rank), default=min(reports))
        step, total = steps.get(rank), max(totals, default=None)
        metrics = reports[rank].metrics
        progress = Progress(
            step=step,
            max_step=max(steps.values(), default=None),
            rank=rank,
            total=total,
            metrics={name: value for name, (value, _) in metrics.items()},
            metric_steps={
                name: at for name, (_, at) in metrics.items() if at is not None and at != step
            },
            at_s=at_s,
        )
        if step is None:
            return progress
        before = self.status.progress
        step_at_s = before.step_at_s if before.step == step else at_s
        progress = replace(progress, step_at_s=step_at_s)
        if self._first_step is None:
            self._first_step = (step, at_s)
        steps_done, seconds = step - self._first_step[0], step_at_s - self._first_step[1]
        if steps_done <= 0 or seconds <= 0:
            return progress
        speed = steps_done / seconds
        eta_s = max(0, total - step) / speed if total is not None else None
        return replace(progress, steps_per_s=speed, eta_s=eta_s)

    def _warn_of_nan(self, report: RankReport) -> None:
        """Record the first NaN or Inf of each metric in an attempt, because progress shows only one rank."""
        for name, value in report.metrics.items():
            if not isinstance(value, float) or math.isfinite(value) or name in self._not_finite:
                continue
            self._not_finite.add(name)
            step = "" if report.step is None else f" at step {report.step}"
            message = f"rank {report.rank} reported {name} {value}{step}"
            attempt = f" of attempt {report.attempt}" if report.attempt else ""
            self.add_condition("warning", names.REASON_NOT_FINITE, f"{message}{attempt}")

    def _set(self, **fields: Any) -> None:
        self.status = replace(self.status, **fields)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_EVERY_S, self.write)

    def write(self) -> None:
        """Write the status file. A failure is logged, and the next change retries."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        data = render_status(self.status)
        try:
            write_atomically(self._folder.status, data, is_durable=self.status.phase.is_final)
        except OSError as error:
            logger.warning("status: %s", error)
            if self.status.phase.is_final:
                self._write_in_reserve(data)
        if self.status.phase.is_final:
            self._folder.reserve.unlink(missing_ok=True)

    def _keep_reserve(self) -> None:
        """Reserve disk space for the final status, so that a full disk cannot lose the verdict."""
        size = _RESERVE_BYTES + 2 * len(render_status(self.status))
        with contextlib.suppress(OSError):
            write_atomically(self._folder.reserve, b"\n" * size)

    def _write_in_reserve(self, data: bytes) -> None:
        try:
            with self._folder.reserve.open("r+b") as file:
                file.write(data)
                file.truncate()
                file.flush()
                os.fsync(file.fileno())
            self._folder.reserve.replace(self._folder.status)
        except OSError as error:
            logger.warning("last status: %s", error)
