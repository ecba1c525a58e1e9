"""What a real cluster showed in each kind of trouble: JSON that was recorded, and trimmed to what is read."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windlass.kube.blockers import Blocker, find_blockers

_FOLDER = Path(__file__).parent / "seen"


@dataclass
class Seen:
    """One job, its pods, and the namespace's events at that time."""

    job: dict[str, Any] = field(default_factory=dict)
    pods: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    quotas: list[dict[str, Any]] = field(default_factory=list)
    claims: list[dict[str, Any]] = field(default_factory=list)

    def blockers(self, **more: Any) -> list[Blocker]:
        return find_blockers(
            self.job, self.pods, self.events, self.quotas, claims=self.claims, **more
        )


def load(name: str) -> Seen:
    return Seen(**json.loads((_FOLDER / f"{name}.json").read_text()))
