"""Group of all trackers of a run behind one `log`, for the trainer and for hand-written loops.

`log` takes a few microseconds, whatever the trackers do. Each tracker has its own queue and thread
(`TrackerQueue`), so a slow or broken tracker can only lose its own records. A full queue drops its oldest
record and logs that once. After an OSError a tracker is retried with growing pauses. Any other error turns
it off. On ranks other than 0 a group is empty, so that callers need no `if`.

`trackers.json` in the run's folder stores each tracker's run id, so that a restart continues the same run.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from windlass.train.trackers.tracker import Tracker

logger = logging.getLogger(__name__)

RUN_IDS_FILE = "trackers.json"
MAX_QUEUED = 10_000
_AT_ONCE = 200
_SHORTEST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_MAX_ERROR_CHARACTERS = 2_000  # characters of an error's text in a warning
CLOSE_WITHIN_S = 10.0
SETTLE_WITHIN_S = 1.0  # limit for a stuck disk, because writing usually takes a millisecond
_AT_EXIT_S = 3.0


class RunIds:
    """Run ids by tracker, in memory and in the folder. A failed write is only logged."""

    def __init__(self, folder: Path, *, known: dict[str, str]) -> None:
        self._path = folder / RUN_IDS_FILE
        self._by_tracker = {**read_run_ids(folder), **known}
        self._lock = threading.Lock()

    def get(self, tracker: str) -> str | None:
        return self._by_tracker.get(tracker)

    def as_dict(self) -> dict[str, str]:
        with self._lock:
            return dict(self._by_tracker)

    def keep(self, tracker: str, run_id: str) -> None:
        with self._lock:
            self._by_tracker[tracker] = run_id
            temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                temporary.write_text(json.dumps(self._by_tracker, indent=1) + "\n")
                temporary.replace(self._path)
            except OSError as error:
                with contextlib.suppress(OSError):
                    temporary.unlink()
                logger.warning(
                    "%s cannot be written (%s): a restart without a checkpoint starts a new run",
                    self._path,
                    error,
                )


def read_run_ids(folder: Path) -> dict[str, str]:
    """Return the run ids of an earlier attempt, or nothing if the file is missing or broken."""
    try:
        content = json.loads((folder / RUN_IDS_FILE).read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict):
        return {}
    return {str(name): run_id for name, run_id in content.items() if isinstance(run_id, str)}


class StepRecord:
    """Metrics of a step. A tracker's thread reads tensors, so that a step never waits for the device."""

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


class TrackerQueue:
    """Queue of records, sent by the tracker's own thread."""

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
        self._is_due_now = False
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

    def send_soon(self) -> None:
        """Send the queued records without waiting for more."""
        with self._change:
            self._is_due_now = bool(self._records)
            self._change.notify_all()

    def wait_until_sent(self, timeout_s: float) -> None:
        with self._change:
            self._change.wait_for(lambda: self._num_unsent == 0 or self._is_off, timeout=timeout_s)

    def ask_to_close(self, *, ok: bool | None, timeout_s: float) -> None:
        """Ask the tracker's thread to send the queued records and close the tracker within `timeout_s`.

        ok: whether the run succeeded. None means unknown, so the tracker's run stays open.
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
                "%s did not accept its last records within %.0f s: %d are %s",
                self.tracker.name,
                timeout_s,
                len(self._records) or 1,
                self._consequence,
            )

    def _drop_oldest(self) -> None:
        self._records.popleft()
        self._num_unsent -= 1
        self.num_dropped += 1
        if self.num_dropped == 1:
            logger.warning(
                "%s is too slow, so its oldest records are dropped; hint: log less often",
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
        except Exception as error:  # noqa: BLE001  # a tracker must never end a run
            self._turn_off(error)

    def _start_tracker(self) -> None:
        self.tracker.start(self._params)
        if self.tracker.run_id:
            self._keep_run_id(self.tracker.name, self.tracker.run_id)

    def _wait_for_records(self) -> bool:
        """Wait for records and return True, or return False when all are sent and the run is over."""
        with self._change:
            self._change.wait_for(lambda: self._records or self._is_closing)
            self._change.wait_for(
                lambda: self._is_closing or self._is_due_now, timeout=self.tracker.every_s
            )
            self._is_due_now = False
            return bool(self._records)

    def _send(self) -> None:
        self.tracker.flush()  # the rest of a failed attempt
        with self._change:
            records = [self._records.popleft() for _ in range(min(_AT_ONCE, len(self._records)))]
        for record in records:
            self.tracker.log(record.numbers(), step=record.step, time_s=record.time_s)
        self.tracker.flush()
        with self._change:
            self._num_unsent = len(self._records)
            self._change.notify_all()

    def _try_until_closed(self, action: Callable[[], None]) -> None:
        """Run an action and retry it on OSError with growing pauses. While closing, obey the time limit."""
        pause_s = _SHORTEST_PAUSE_S
        while True:
            try:
                return action()
            except OSError as error:
                if self._is_closing and time.monotonic() + _SHORTEST_PAUSE_S >= self._end_s:
                    raise
                self._warn(error, "it is retried, and its records wait meanwhile")
            with self._change:
                self._change.wait(pause_s)  # ends early when the run ends
            pause_s = _SHORTEST_PAUSE_S if self._is_closing else min(pause_s * 2, _LONGEST_PAUSE_S)

    def _turn_off(self, error: Exception) -> None:
        with self._change:
            self._is_off, num_lost = True, len(self._records)
            self._records.clear()
        self._has_warned = False
        self._warn(
            error, f"it is turned off, and {num_lost} or more records are {self._consequence}"
        )

    @property
    def _can_backfill(self) -> bool:
        return callable(getattr(self.tracker, "backfill", None))

    @property
    def _consequence(self) -> str:
        """Phrase that describes what happens to records that the tracker did not accept."""
        if self._can_backfill:
            return "in metrics.jsonl, from which the next start of this run sends them"
        return "lost, but the run itself is not affected"

    def _warn(self, error: Exception, consequence: str) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        reason = f"{type(error).__name__}: {error}"[:_MAX_ERROR_CHARACTERS]
        logger.warning("%s failed: %s; %s", self.tracker.name, reason, consequence)


def _number(value: Any) -> float:
    if isinstance(value, (bool, int, float)):
        return value
    return float(value.item() if hasattr(value, "item") else value)


def deadline_after(timeout_s: float) -> Callable[[], float]:
    """Return a function that returns the time remaining, for several queues that share a limit."""
    end_s = time.monotonic() + timeout_s
    return lambda: max(end_s - time.monotonic(), 0.0)


class TrackerGroup:
    """Trackers of a run that start, log and close together. No method raises for a tracker's error."""

    def __init__(self, trackers: Sequence[Tracker], *, run_ids: RunIds) -> None:
        self._run_ids = run_ids
        self._queues = [TrackerQueue(tracker, keep_run_id=run_ids.keep) for tracker in trackers]
        self._is_started = False
        self._is_closed = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(queue.tracker.name for queue in self._queues)

    @property
    def run_ids(self) -> dict[str, str]:
        """The run ids known so far, by tracker, for the checkpoint."""
        return self._run_ids.as_dict()

    @property
    def num_dropped(self) -> int:
        return sum(queue.num_dropped for queue in self._queues)

    def start(self, params: Mapping[str, Any] | None = None) -> None:
        """Start or continue the run without waiting for the trackers."""
        if self._is_started:
            return
        self._is_started = True
        for queue in self._queues:
            queue.start(dict(params or {}))
        if self._queues:
            atexit.register(self._close_at_exit)

    def log(self, metrics: Mapping[str, Any], *, step: int) -> None:
        """Log the metrics of a step. Do not change a one-element tensor afterwards, as it is read later."""
        if not self._queues or self._is_closed:
            return
        self.start()
        record = StepRecord(dict(metrics), step=step, time_s=time.time())
        for queue in self._queues:
            queue.put(record)

    def settle(self) -> None:
        """Send the queued records now. Files are written on return, unless the disk is slow."""
        for queue in self._queues:
            queue.send_soon()
        for queue in self._queues:
            if getattr(queue.tracker, "is_file", False):
                queue.wait_until_sent(SETTLE_WITHIN_S)

    def close(self, *, ok: bool = True, timeout_s: float = CLOSE_WITHIN_S) -> None:
        """End the run in each tracker. Records that cannot be sent in time are lost, with a warning."""
        self._close(ok=ok, timeout_s=timeout_s)

    def _close_at_exit(self) -> None:
        self._close(ok=None, timeout_s=_AT_EXIT_S)

    def _close(self, *, ok: bool | None, timeout_s: float) -> None:
        if self._is_closed or not self._is_started:
            return
        self._is_closed = True
        atexit.unregister(self._close_at_exit)
        for queue in self._queues:
            queue.ask_to_close(ok=ok, timeout_s=timeout_s)
        time_left = deadline_after(timeout_s)
        for queue in self._queues:
            queue.join(time_left())
