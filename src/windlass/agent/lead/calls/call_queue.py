"""Calls of a compute: their queue, the history of recent calls, and the inactivity timer.

Recent calls are kept so that a client that reconnects can ask for their results. For older calls only a
hash of the ID is kept. A call that ran is therefore never reported as unknown.

This module sends no orders. `agent.lead.calls.call_lead` decides what to do with the call whose turn it is.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator

from windlass.agent.lead.calls.call_state import Call
from windlass.agent.link.agent_link import Link
from windlass.wire.payloads import forget

KEPT_CALLS = 200
KEPT_BYTES = 256 << 20
KEPT_IDS = 50_000  # minimum, and half of the maximum, which takes a few MB


class CallQueue:
    """First-in, first-out queue that runs one call at a time."""

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
        """Seconds without any call, or 0 while a call runs or waits."""
        return time.monotonic() - self._idle_since_s if self.is_idle else 0.0

    def all(self) -> list[Call]:
        """Return all waiting calls, then the running one."""
        return [*self._waiting, *([self.current] if self.current else [])]

    def newest_first(self) -> Iterator[Call]:
        """Yield the waiting calls, newest first, then the running one."""
        yield from reversed(self._waiting)
        if self.current is not None:
            yield self.current

    def add(self, call: Call) -> list[Call]:
        """Append a call and return the unfinished calls ahead of it."""
        before = [each for each in (self.current, *self._waiting) if each and not each.is_final]
        self._waiting.append(call)
        self.wake()
        return before

    def put_first(self, call: Call) -> None:
        """Requeue a call that bypassed the queue, at the front."""
        if call not in self._waiting and not call.is_final:
            self._waiting.appendleft(call)
            self.wake()

    def remove(self, call: Call) -> bool:
        """Remove a waiting call. Return False if it was not waiting."""
        if call is self.current or call not in self._waiting:
            return False
        self._waiting.remove(call)
        return True

    def start_next(self) -> Call | None:
        """Make the first waiting call the current one and return it, or None if another call runs."""
        if not self._waiting or self.current not in (None, self._waiting[0]):
            return None
        self.current = self._waiting.popleft()
        return self.current

    def end_current(self) -> None:
        """Clear the current call, so that the next one can start."""
        self.current = None
        self._idle_since_s = time.monotonic()
        if self._waiting:
            self.wake()

    def wake(self) -> None:
        """Wake the waiter."""
        self._woken.set()

    async def wait(self) -> None:
        """Wait until the queue changes."""
        self._woken.clear()
        await self._woken.wait()


class CallHistory:
    """Recent calls by ID, newest last, and hashes of the IDs of older ones."""

    def __init__(self) -> None:
        self._calls: OrderedDict[str, Call] = OrderedDict()
        self._kept_bytes = 0
        self.num_calls = 0
        # hashes of the IDs of calls that are no longer kept: the latest, and those before them
        self._past: set[int] = set()
        self._older: set[int] = set()
        self._older_until = 0  # upper bound on the sequence numbers in `_older`
        self._lost_until = 0  # upper bound for calls whose hashes were dropped

    def __getitem__(self, call_id: str) -> Call:
        return self._calls[call_id]

    def forget(self, call: Call) -> None:
        """Remove a call as if it had never arrived."""
        self._calls.pop(call.id, None)

    def get(self, call_id: str) -> Call | None:
        return self._calls.get(call_id)

    def has_forgotten(self, call_id: str, *, since: int | None = None) -> bool:
        """Return whether a call was here but is no longer kept.

        `since` is the number of calls accepted before this one could arrive. The result is also True if the
        hashes of later calls were dropped. Otherwise the client could repeat a call that has already run.
        """
        mark = hash(call_id)
        is_uncertain = since is not None and since < self._lost_until
        return mark in self._past or mark in self._older or is_uncertain

    def __contains__(self, call_id: object) -> bool:
        return call_id in self._calls

    def add(self, call: Call) -> None:
        self._calls[call.id] = call
        self.num_calls += 1

    def drop_listener(self, link: Link) -> list[Call]:
        """Remove a disconnected client and return the calls that it listened to."""
        listened = [c for c in self._calls.values() if any(one.link is link for one in c.listeners)]
        for call in listened:
            call.listeners = [other for other in call.listeners if other.link is not link]
        return listened

    def recent(self) -> list[Call]:
        return list(self._calls.values())

    @property
    def last_started(self) -> Call | None:
        """Newest call that was sent to ranks, or None."""
        return next((c for c in reversed(self._calls.values()) if c.attempt is not None), None)

    def count_ahead(self, call: Call) -> int:
        """Return the number of unfinished calls that arrived before a call."""
        calls = self.recent()
        return sum(not other.is_final for other in calls[: calls.index(call)])

    def settle(self, call: Call) -> None:
        """Count the answers of a finished call and drop the oldest calls. The newest one always stays."""
        self._kept_bytes += sum(answer.num_bytes for answer in call.answers.values())
        while len(self._calls) > KEPT_CALLS or (
            self._kept_bytes > KEPT_BYTES and len(self._calls) > 1
        ):
            oldest = next(iter(self._calls.values()))
            if not oldest.is_final or oldest is call:
                return
            self._forget(oldest)

    def _forget(self, call: Call) -> None:
        del self._calls[call.id]
        self._remember(call.id)
        for answer in call.answers.values():
            self._kept_bytes -= answer.num_bytes
        answered = [answer.file for answer in call.answers.values()]
        for path in (*answered, *(item.file for item in call.items), *call.unread):
            forget(path)

    def _remember(self, call_id: str) -> None:
        self._past.add(hash(call_id))
        if len(self._past) >= KEPT_IDS:
            self._older, self._past = self._past, set()
            self._lost_until, self._older_until = self._older_until, self.num_calls


class Inactivity:
    """Timer that calls `end` after `ttl_s` seconds without calls, or never if `ttl_s` is None."""

    def __init__(
        self, ttl_s: float | None, *, idle_s: Callable[[], float], end: Callable[[str], None]
    ) -> None:
        self.ttl_s = ttl_s
        self._idle_s = idle_s
        self._end = end
        self._timer: asyncio.TimerHandle | None = None

    def set(self, ttl_s: float | None) -> None:
        """Change the time limit."""
        self.ttl_s = ttl_s
        if self._timer is not None:
            self._timer.cancel()
        self.check()

    def check(self) -> None:
        """Call `end` if the time limit has passed. Otherwise schedule the next check."""
        if self.ttl_s is None:
            return
        idle_s = self._idle_s()
        if idle_s >= self.ttl_s:
            self._end(f"nothing was called for {self.ttl_s:g} s (inactivity_ttl)")
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.ttl_s - idle_s, self.check)
