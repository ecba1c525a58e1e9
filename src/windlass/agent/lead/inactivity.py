"""How long a compute stays when nothing is called: one timer, set for the earliest moment it may end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Inactivity:
    """Calls `end` once nothing was called for `ttl_s`; None: never."""

    def __init__(
        self, ttl_s: float | None, *, idle_s: Callable[[], float], end: Callable[[str], None]
    ) -> None:
        self.ttl_s = ttl_s
        self._idle_s = idle_s
        self._end = end
        self._timer: asyncio.TimerHandle | None = None

    def set(self, ttl_s: float | None) -> None:
        """How long it stays, from now on."""
        self.ttl_s = ttl_s
        if self._timer is not None:
            self._timer.cancel()
        self.check()

    def check(self) -> None:
        """End when nothing was called for long; else look again."""
        if self.ttl_s is None:
            return
        idle_s = self._idle_s()
        if idle_s >= self.ttl_s:
            self._end(f"nothing was called for {self.ttl_s:g} s (inactivity_ttl)")
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.ttl_s - idle_s, self.check)
