"""What a client cannot reach for a while: said once when it has lasted, and once when it is over.

Each becomes a condition of the job's status, so that whoever shows conditions shows it. Holds no threads and
asks nobody: what is so is told with each look.
"""

from __future__ import annotations

import time

from windlass.wire.status import Condition

_KEPT = 4


class Outage:
    """One thing that is there or not."""

    def __init__(self, *, away: str, back: str, over: str, patience_s: float) -> None:
        self._away, self._back = away, back  # reasons
        self._over = over  # what is said when it is over
        self._patience_s = patience_s
        self._since_s: float | None = None
        self._is_said = False
        self._notes: list[Condition] = []

    def look(self, trouble: str) -> tuple[Condition, ...]:
        """What to tell, given what is wrong now; nothing is an empty text."""
        now_s = time.time()
        if trouble:
            self._since_s = self._since_s or now_s
            if not self._is_said and now_s - self._since_s >= self._patience_s:
                self._is_said = True
                self._note(self._away, trouble, self._since_s)
        elif self._since_s is not None:
            if self._is_said:
                self._note(self._back, f"{self._over} after {now_s - self._since_s:.0f} s", now_s)
            self._since_s, self._is_said = None, False
        return tuple(self._notes)

    def _note(self, reason: str, message: str, since_s: float) -> None:
        note = Condition(type="warning", reason=reason, message=message, since_s=since_s)
        self._notes = [*self._notes, note][-_KEPT:]
