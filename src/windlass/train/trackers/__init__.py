"""Trackers of a run's metrics: JSONL always, and others with `make_trackers("mlflow,tensorboard", ...)`.

These are the public names of this folder. Importing it imports no tracker's library.
"""

from __future__ import annotations

from windlass.train.trackers.tracker import Tracker
from windlass.train.trackers.tracker_group import TrackerGroup
from windlass.train.trackers.tracker_table import make_trackers

__all__ = ["Tracker", "TrackerGroup", "make_trackers"]
