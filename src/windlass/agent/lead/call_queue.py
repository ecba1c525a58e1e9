"""The calls of a warm lead that wait, in the order in which they came, and the one that runs.

Gives no orders: what is done with the call whose turn it is, is `agent.lead.call_lead`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator

from windlass.agent.lead.call_state import Call


class CallQueue:
    """First come, first served, one at a time."""

    def __init__(self) -> None:
        self.current: Call | None = None
        self._waiting: deque[Call] = deque()
        self._woken = asyncio.Event()
        self._idle_since_s = time.monotonic()

    @property
    def is_idle(self) -> bool:
        return self.current is None and not self._waiting

    @property
    def idle_s(self) -> float:
        """For how long nothing has been called; 0 while something runs or waits."""
        return time.monotonic() - self._idle_since_s if self.is_idle else 0.0

    def all(self) -> list[Call]:
        """Those that wait and the one that runs."""
        return [*self._waiting, *([self.current] if self.current else [])]

    def newest_first(self) -> Iterator[Call]:
        """Those that wait, the last one first, and the one that runs."""
        yield from reversed(self._waiting)
        if self.current is not None:
            yield self.current

    def add(self, call: Call) -> list[Call]:
        """Queue a call; returns those before it, less one that has ended and whose ranks only have to go."""
        before = [each for each in (self.current, *self._waiting) if each and not each.is_final]
        self._waiting.append(call)
        self.wake()
        return before

    def put_first(self, call: Call) -> None:
        """Something is wrong with a call that never met the queue: it is first in it now."""
        if call not in self._waiting and not call.is_final:
            self._waiting.appendleft(call)
            self.wake()

    def remove(self, call: Call) -> bool:
        """Take out a call that waits; whether it did."""
        if call is self.current or call not in self._waiting:
            return False
        self._waiting.remove(call)
        return True

    def start_next(self) -> Call | None:
        """Make the first one the current one, unless another one runs."""
        if not self._waiting or self.current not in (None, self._waiting[0]):
            return None
        self.current = self._waiting.popleft()
        return self.current

    def end_current(self) -> None:
        """The current call is over: the next one's turn."""
        self.current = None
        self._idle_since_s = time.monotonic()
        if self._waiting:
            self.wake()

    def wake(self) -> None:
        """Have whoever waits look again."""
        self._woken.set()

    async def wait(self) -> None:
        """Until there is something to look at."""
        self._woken.clear()
        await self._woken.wait()
