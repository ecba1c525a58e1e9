"""All trackers of a run behind one `log`: what the trainer holds, and what a hand-written loop may hold too.

`log` costs a few microseconds, whatever the trackers do: each has its own queue and thread (tracker_lane).
On ranks other than 0 a group is empty, so that callers need no `if`. Knows no tracker by name.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Mapping, Sequence
from typing import Any

from windlass.train.trackers.run_ids import RunIds
from windlass.train.trackers.tracker import Tracker
from windlass.train.trackers.tracker_lane import StepRecord, TrackerLane, deadline_after

CLOSE_WITHIN_S = 10.0
SETTLE_WITHIN_S = 1.0  # where the disk is stuck; else a millisecond
_AT_EXIT_S = 3.0


class TrackerGroup:
    """Start it, log to it, close it; none of these raises for what a tracker does."""

    def __init__(self, trackers: Sequence[Tracker], *, run_ids: RunIds) -> None:
        self._run_ids = run_ids
        self._lanes = [TrackerLane(tracker, keep_run_id=run_ids.keep) for tracker in trackers]
        self._is_started = False
        self._is_closed = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(lane.tracker.name for lane in self._lanes)

    @property
    def run_ids(self) -> dict[str, str]:
        """By tracker, as far as they are known by now: what a checkpoint keeps."""
        return self._run_ids.as_dict()

    @property
    def num_dropped(self) -> int:
        return sum(lane.num_dropped for lane in self._lanes)

    def start(self, params: Mapping[str, Any] | None = None) -> None:
        """Begin the run, or go on with it; returns at once."""
        if self._is_started:
            return
        self._is_started = True
        for lane in self._lanes:
            lane.start(dict(params or {}))
        if self._lanes:
            atexit.register(self._close_at_exit)

    def log(self, metrics: Mapping[str, Any], *, step: int) -> None:
        """Note a step's numbers. A tensor of one element is read later: it must not be changed meanwhile."""
        if not self._lanes or self._is_closed:
            return
        self.start()
        record = StepRecord(dict(metrics), step=step, time_s=time.time())
        for lane in self._lanes:
            lane.put(record)

    def settle(self) -> None:
        """Send what waits now; what goes to a file is written on return, unless the disk is slow."""
        for lane in self._lanes:
            lane.hurry()
        for lane in self._lanes:
            if getattr(lane.tracker, "is_file", False):
                lane.wait_until_sent(SETTLE_WITHIN_S)

    def close(self, *, ok: bool = True, timeout_s: float = CLOSE_WITHIN_S) -> None:
        """Send what waits and end the run in each tracker; what is not taken by then is lost, and told."""
        self._close(ok=ok, timeout_s=timeout_s)

    def _close_at_exit(self) -> None:
        self._close(ok=None, timeout_s=_AT_EXIT_S)

    def _close(self, *, ok: bool | None, timeout_s: float) -> None:
        if self._is_closed or not self._is_started:
            return
        self._is_closed = True
        atexit.unregister(self._close_at_exit)
        for lane in self._lanes:
            lane.ask_to_close(ok=ok, timeout_s=timeout_s)
        time_left = deadline_after(timeout_s)
        for lane in self._lanes:
            lane.join(time_left())
