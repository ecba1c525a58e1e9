"""Live view of a job: the output of its ranks and, on a terminal, a status line, until the job ends.

Lines of the ranks' stdout go to stdout, and everything else to stderr. No meaning depends on color. `follow`
holds the job's lease while it runs. The first Ctrl-C asks the job to stop and prints a message. The second
one kills it. If this process ends in any other way, the lease ends the job.
"""

from __future__ import annotations

import contextlib
import math
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from typing import Protocol, TextIO

from windlass.client.jobs.job import Interrupts, Job
from windlass.client.terminal import (
    can_draw,
    clean,
    one_line,
    paint,
    render_line,
    render_seconds,
    wants_color,
    wrap_advice,
)
from windlass.errors import count_noun
from windlass.waiting import wait_until
from windlass.wire.log_lines import LogLine, LogQuery
from windlass.wire.states import NOT_ENDED, MomentName, RankState
from windlass.wire.status import Condition, JobStatus, Phase, Progress

_REDRAW_S = 0.1
_BETWEEN = " · "
_BAR_WIDTH = 20
# Show the age of the last step once it exceeds both this time and this many usual steps.
_STILL_S = 10.0
_STILL_STEPS = 5
# Reason for waiting, by the last phase that the job completed.
_WAITING_FOR = {
    MomentName.QUEUED: "waiting for a node for each pod",
    MomentName.SCHEDULED: "waiting for the image",
    MomentName.IMAGE: "waiting for the containers",
    MomentName.CONTAINER: "waiting for the agents",
    MomentName.AGENT_UP: "waiting for all nodes",
}
_EVERY_S = 0.05


class View(Protocol):
    """Display of a followed job."""

    def show(self, status: JobStatus, lines: Iterable[LogLine]) -> None:
        """Show new lines and the current status."""

    def interrupted(self, *, now: bool) -> None:
        """Show that the user pressed Ctrl-C."""

    def close(self) -> None:
        """Restore the terminal."""


class QuietView:
    """View that shows nothing."""

    def show(self, status: JobStatus, lines: Iterable[LogLine]) -> None:
        pass

    def interrupted(self, *, now: bool) -> None:
        pass

    def close(self) -> None:
        pass


class LiveView:
    """View with scrolling lines above a status line."""

    def __init__(self, *, out: TextIO | None = None, messages: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._messages = messages or sys.stderr
        self._draws = can_draw(self._messages)
        self._drawn = False
        self._drawn_s = 0.0
        self._status: JobStatus | None = None
        self._shown: set[Condition] = set()
        self._blocked_by: set[str] = set()
        self._num_restarts = 0
        self._bars: dict[int, LogLine] = {}

    def show(self, status: JobStatus, lines: Iterable[LogLine]) -> None:
        self._status = status
        self._show_conditions(status)
        self._show_lines(lines)
        self._draw(status)

    def _show_lines(self, lines: Iterable[LogLine]) -> None:
        """Print lines. Print only the last state of a progress bar, once other output follows."""
        for line in lines:
            if line.replaced:
                self._bars[line.rank] = line
                continue
            self._bars.pop(line.rank, None)
            self._print(line)

    def _print(self, line: LogLine) -> None:
        stream = self._out if line.stream == "stdout" else self._messages
        color = wants_color(stream)
        self._erase()
        stream.write(render_line(line, color=color) + "\n")
        stream.flush()

    def say(self, text: str) -> None:
        self._erase()
        self._messages.write(f"{clean(text, color=False)}\n")
        self._messages.flush()

    def interrupted(self, *, now: bool) -> None:
        if now:
            self.say("windlass: killing every rank now")
            return
        # the status may still show a rank as pending that has just started
        ranks = self._status.ranks if self._status else ()
        num_left = sum(rank.state in NOT_ENDED for rank in ranks)
        self.say(
            f"windlass: stopping {count_noun(num_left, 'rank')}; Ctrl-C again to kill them now"
        )

    def close(self) -> None:
        self._erase()
        for line in self._bars.values():
            self._print(line)
        self._bars.clear()

    def _show_conditions(self, status: JobStatus) -> None:
        new = [condition for condition in status.conditions if condition not in self._shown]
        self._shown.update(new)
        for condition in new:
            if condition.type == "warning":
                self.say(f"windlass: {condition.message}")
            elif self._is_news(condition):
                message = f"windlass: {condition.message}"
                lines = wrap_advice(message, condition.hint, _width())
                self.say(lines if self._draws else f"windlass: {condition.text}")
        for verdict in status.history[self._num_restarts :]:
            self.say(f"windlass: {verdict.message}; restarted as attempt {verdict.attempt + 1}")
        self._num_restarts = len(status.history)

    def _is_news(self, condition: Condition) -> bool:
        """Return whether a blocker is of a new kind. More pods with a known blocker are not shown."""
        is_news = condition.type == "blocker" and condition.reason not in self._blocked_by
        self._blocked_by.add(condition.reason)
        return is_news

    def _draw(self, status: JobStatus) -> None:
        now_s = time.monotonic()
        if not self._draws or status.phase.is_final or now_s - self._drawn_s < _REDRAW_S:
            return
        self._drawn_s = now_s
        width = _width()
        line = render_status_line(status, now_s=time.time(), bar=self._last_bar(status))
        text = one_line(line)
        if len(text) > width:  # leave out the bar, so that the numbers fit
            text = _cut_parts(re.sub("[━─]+ ", "", text), width)
        self._messages.write(f"\r\x1b[2K{paint(text, 2, color=wants_color(self._messages))}")
        self._messages.flush()
        self._drawn = True

    def _last_bar(self, status: JobStatus) -> str:
        """Return the progress bar of the lowest rank that has one in this attempt."""
        failed = [verdict.attempt for verdict in status.history]
        bars = [
            line
            for _, line in sorted(self._bars.items())
            if line.attempt == status.attempt and line.attempt not in failed
        ]
        return clean(bars[0].text, color=False).strip() if bars else ""

    def _erase(self) -> None:
        if self._drawn:
            self._messages.write("\r\x1b[2K")
            self._messages.flush()
            self._drawn = False
            self._drawn_s = 0.0


def render_status_line(status: JobStatus, *, now_s: float, bar: str = "") -> str:
    """Render the state of the job in one line."""
    parts = [f"{status.name} {_phase_text(status)} {render_seconds(now_s - status.created_at_s)}"]
    if status.attempt:
        parts.append(f"attempt {status.attempt}")
    parts += render_progress(status.progress, now_s=now_s)
    if status.progress.step is None and bar:
        parts.append(bar)
    return _BETWEEN.join(parts)


def _phase_text(status: JobStatus) -> str:
    names = [moment.name for moment in status.timeline]
    if status.phase in (Phase.PENDING, Phase.STARTING):
        last = names[-1] if names else MomentName.SUBMITTED
        return _WAITING_FOR.get(last, str(status.phase.value))
    if status.phase is not Phase.RUNNING:
        return str(status.phase.value)
    if MomentName.IMPORTS_DONE not in names:
        return "importing"
    running, returned = status.count(RankState.RUNNING), status.count(RankState.RETURNED)
    done = f", {returned} done" if returned else ""
    return f"{running}/{status.num_ranks} ranks running{done}"


def render_progress(progress: Progress, *, now_s: float | None = None) -> list[str]:
    """Render step, bar, metrics and remaining time, if known. `now_s` is None for a job that ended.

    All of them belong to one rank. If ranks are at different steps, only the range of steps is shown.
    The age of the last step comes first, because a narrow terminal shows only the first parts.
    """
    parts = [] if now_s is None else _render_age(progress, now_s)
    is_still = bool(parts)
    steps = f"steps {progress.step}-{progress.max_step}" if progress.is_spread else ""
    if progress.step is not None:
        parts.append((steps or f"step {progress.step}") + _render_share(progress))
    if not progress.is_spread:
        parts += [_render_named(name, progress) for name in progress.metrics]
    if now_s is not None and not is_still and progress.eta_s is not None and progress.eta_s > 0:
        parts.append(f"{render_seconds(progress.eta_s)} left")
    return parts


def _render_share(progress: Progress) -> str:
    if progress.step is None or not progress.total:
        return ""
    done = min(1.0, max(0.0, progress.step / progress.total))
    bar = ("━" * round(done * _BAR_WIDTH)).ljust(_BAR_WIDTH, "─")
    return f"/{progress.total} {bar} {done:.0%}"


def _render_named(name: str, progress: Progress) -> str:
    """Render one metric, with its step if a later step has begun since."""
    step = progress.metric_steps.get(name)
    return f"{name} {render_metric(progress.metrics[name])}" + (
        "" if step is None else f" (step {step})"
    )


def _render_age(progress: Progress, now_s: float) -> list[str]:
    """Return the age of the last step, if it was long ago."""
    if progress.step is None or progress.step == progress.total:
        return []
    age_s = now_s - progress.step_at_s
    usual_s = 1 / progress.steps_per_s if progress.steps_per_s else 0.0
    if progress.step_at_s and age_s >= max(_STILL_S, _STILL_STEPS * usual_s):
        age = render_seconds(age_s)
        if progress.is_spread:
            return [f"rank {progress.rank} at step {progress.step} for {age}"]
        return [f"last step {age} ago"]
    return []


def render_metric(value: object) -> str:
    """Render a number with four digits. `(!)` marks NaN and infinities."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.4g}" if math.isfinite(value) else f"{value} (!)"


def _cut_parts(text: str, width: int) -> str:
    """Return as many whole parts as fit, so that no number is shown without its last digits."""
    if len(text) <= width:
        return text
    head, _, _ = text[: width + 1].rpartition(_BETWEEN)
    return head or text[:width]


def _width() -> int:
    return shutil.get_terminal_size().columns - 1


def follow(
    job: Job,
    view: View,
    *,
    lease: bool = True,
    interrupts: Interrupts | None = None,
    explain: Callable[[JobStatus], JobStatus] | None = None,
) -> JobStatus:
    """Show a job until it has ended, and return its last status.

    Without `interrupts`, Ctrl-C only stops showing the job. `explain` adds details to a status about what the
    job waits for.
    """
    with contextlib.ExitStack() as stack:
        stack.callback(view.close)
        if lease:
            stack.enter_context(job.hold())
        to_show = interrupts.to_show if interrupts is not None else []
        reader = job.reader(LogQuery(follow=True))
        while True:
            while to_show:
                view.interrupted(now=to_show.pop(0))
            status = job.status()
            lines = reader.read_new()
            view.show(explain(status) if explain else status, lines)
            if lines:
                continue
            if status.phase.is_final:
                break
            wait_until(lambda: False, timeout_s=_EVERY_S)
        view.show(status, reader.read_rest())
    return status
