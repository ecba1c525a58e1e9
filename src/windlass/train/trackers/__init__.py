"""Where a run's numbers go: `make_trackers("mlflow,tensorboard", folder=..., run=...)`, and JSONL always.

Public names of this folder; what each does is in its own file. Imports no tracker's library.
"""

from __future__ import annotations

from windlass.train.trackers.tracker import Tracker
from windlass.train.trackers.tracker_group import TrackerGroup
from windlass.train.trackers.tracker_table import make_trackers

__all__ = ["Tracker", "TrackerGroup", "make_trackers"]
