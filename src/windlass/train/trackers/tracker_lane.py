"""One tracker, its queue and its thread: a slow or broken tracker can only lose its own records.

Called by TrackerGroup. `put` never waits: when the queue is full the oldest record goes, and that is said
once. After an OSError a tracker is tried again, with growing pauses; any other error turns it off. Both are
logged once.
"""

from __future__ import annotations

import collections
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from windlass.train.trackers.tracker import Tracker

logger = logging.getLogger(__name__)

MAX_QUEUED = 10_000
_AT_ONCE = 200
_SHORTEST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_IN_SHORT = 2_000  # characters of an error's text


class StepRecord:
    """The metrics of a step. Tensors are read in a tracker's thread: a step waits for no device."""

    __slots__ = ("_metrics", "_numbers", "step", "time_s")

    def __init__(self, metrics: Mapping[str, Any], *, step: int, time_s: float) -> None:
        self._metrics = metrics
        self._numbers: dict[str, float] | None = None
        self.step = step
        self.time_s = time_s

    def numbers(self) -> dict[str, float]:
        if self._numbers is None:
            self._numbers = {name: _number(value) for name, value in self._metrics.items()}
        return self._numbers


class TrackerLane:
    """Records wait here until the tracker's own thread sends them."""

    def __init__(
        self,
        tracker: Tracker,
        *,
        keep_run_id: Callable[[str, str], None],
        max_queued: int = MAX_QUEUED,
    ) -> None:
        self.tracker = tracker
        self.num_dropped = 0
        self._keep_run_id = keep_run_id
        self._records: collections.deque[StepRecord] = collections.deque()
        self._max_queued = max_queued
        self._change = threading.Condition()
        self._is_closing = False
        self._end_s = math.inf
        self._is_hurried = False
        self._num_unsent = 0
        self._is_off = False
        self._has_warned = False
        self._params: Mapping[str, Any] = {}
        self._is_ok: bool | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"windlass-tracker-{tracker.name}", daemon=True
        )

    def start(self, params: Mapping[str, Any]) -> None:
        self._params = params
        self._thread.start()

    def put(self, record: StepRecord) -> None:
        if self._is_off:
            return
        with self._change:
            self._records.append(record)
            self._num_unsent += 1
            if len(self._records) > self._max_queued:
                self._drop_oldest()
            elif len(self._records) == 1:
                self._change.notify_all()

    def hurry(self) -> None:
        """Send what waits without collecting more."""
        with self._change:
            self._is_hurried = bool(self._records)
            self._change.notify_all()

    def wait_until_sent(self, timeout_s: float) -> None:
        with self._change:
            self._change.wait_for(lambda: self._num_unsent == 0 or self._is_off, timeout=timeout_s)

    def ask_to_close(self, *, ok: bool | None, timeout_s: float) -> None:
        """Send what waits and end, within a time.

        ok: how the run ended; None: unknown, so the tracker's run stays open.
        """
        with self._change:
            self._is_ok, self._is_closing = ok, True
            self._end_s = time.monotonic() + timeout_s
            self._change.notify_all()

    def join(self, timeout_s: float) -> None:
        if not self._thread.is_alive():
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive() and not self._is_off:
            logger.warning(
                "%s did not take its last records within %.0f s: %d are %s",
                self.tracker.name,
                timeout_s,
                len(self._records) or 1,
                self._fate,
            )

    def _drop_oldest(self) -> None:
        self._records.popleft()
        self._num_unsent -= 1
        self.num_dropped += 1
        if self.num_dropped == 1:
            logger.warning(
                "%s does not keep up: its oldest records are dropped from now on; log less often",
                self.tracker.name,
            )

    def _run(self) -> None:
        try:
            self._try_until_closed(self._start_tracker)
            while self._wait_for_records():
                self._try_until_closed(self._send)
            if self.num_dropped and self._can_backfill:
                backfill: Any = self.tracker
                self._try_until_closed(backfill.backfill)
            if self._is_ok is not None:
                is_ok = self._is_ok
                self._try_until_closed(lambda: self.tracker.close(ok=is_ok))
        except Exception as error:  # noqa: BLE001  # a tracker never ends a run
            self._turn_off(error)

    def _start_tracker(self) -> None:
        self.tracker.start(self._params)
        if self.tracker.run_id:
            self._keep_run_id(self.tracker.name, self.tracker.run_id)

    def _wait_for_records(self) -> bool:
        """Whether there is something to send; False when all is sent and the run is over."""
        with self._change:
            self._change.wait_for(lambda: self._records or self._is_closing)
            self._change.wait_for(
                lambda: self._is_closing or self._is_hurried, timeout=self.tracker.every_s
            )
            self._is_hurried = False
            return bool(self._records)

    def _send(self) -> None:
        self.tracker.flush()  # what is left of a try that did not succeed
        with self._change:
            records = [self._records.popleft() for _ in range(min(_AT_ONCE, len(self._records)))]
        for record in records:
            self.tracker.log(record.numbers(), step=record.step, time_s=record.time_s)
        self.tracker.flush()
        with self._change:
            self._num_unsent = len(self._records)
            self._change.notify_all()

    def _try_until_closed(self, action: Callable[[], None]) -> None:
        """Run an action; retry it with growing pauses on an OSError, at the run's end until its limit."""
        pause_s = _SHORTEST_PAUSE_S
        while True:
            try:
                return action()
            except OSError as error:
                if self._is_closing and time.monotonic() + _SHORTEST_PAUSE_S >= self._end_s:
                    raise
                self._warn(error, "it is tried again, and its records wait meanwhile")
            with self._change:
                self._change.wait(pause_s)  # or until the run is over
            pause_s = _SHORTEST_PAUSE_S if self._is_closing else min(pause_s * 2, _LONGEST_PAUSE_S)

    def _turn_off(self, error: Exception) -> None:
        with self._change:
            self._is_off, num_lost = True, len(self._records)
            self._records.clear()
        self._has_warned = False
        self._warn(error, f"it is not tried again, and {num_lost} or more records are {self._fate}")

    @property
    def _can_backfill(self) -> bool:
        return callable(getattr(self.tracker, "backfill", None))

    @property
    def _fate(self) -> str:
        """Describe what becomes of records that the tracker did not take."""
        if self._can_backfill:
            return "in metrics.jsonl, from which the next start of this run sends them"
        return "lost, the run itself is not"

    def _warn(self, error: Exception, consequence: str) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        told = f"{type(error).__name__}: {error}"[:_IN_SHORT]
        logger.warning("%s failed: %s; %s", self.tracker.name, told, consequence)


def _number(value: Any) -> float:
    if isinstance(value, (bool, int, float)):
        return value
    return float(value.item() if hasattr(value, "item") else value)


def deadline_after(timeout_s: float) -> Callable[[], float]:
    """How much is left of a time that several lanes share."""
    end_s = time.monotonic() + timeout_s
    return lambda: max(end_s - time.monotonic(), 0.0)
