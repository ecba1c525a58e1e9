"""The calls of a compute: those that wait, the one that runs, those that ran lately; and how long none came.

First come, first served. Calls that ran stay for a while, so that a client that went away can ask again;
of older ones it keeps that they were, so that no client is ever told that a call which ran was not heard
of. Gives no orders: what is done with the call whose turn it is, is `agent.lead.calls.call_lead`.
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
KEPT_IDS = 50_000  # at least, and twice as many at most: a few MB


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


class CallHistory:
    """Calls by id, newest last."""

    def __init__(self) -> None:
        self._calls: OrderedDict[str, Call] = OrderedDict()
        self._held = 0
        self.num_calls = 0
        # hashes of the ids of calls that are not kept any more: the last ones, and those before them
        self._past: set[int] = set()
        self._older: set[int] = set()
        self._older_until = 0  # no call in `_older` came later than as the so-manieth
        self._lost_until = 0  # nor one of which there is no trace

    def __getitem__(self, call_id: str) -> Call:
        return self._calls[call_id]

    def forget(self, call: Call) -> None:
        """As if it had never come."""
        self._calls.pop(call.id, None)

    def get(self, call_id: str) -> Call | None:
        return self._calls.get(call_id)

    def has_forgotten(self, call_id: str, *, since: int | None = None) -> bool:
        """Whether a call was here that is not kept any more.

        `since` so many calls were taken before it could come: where traces of later ones are lost, it is
        taken to have been here. To say that it was not would make it run twice.
        """
        mark = hash(call_id)
        is_vague = since is not None and since < self._lost_until
        return mark in self._past or mark in self._older or is_vague

    def __contains__(self, call_id: object) -> bool:
        return call_id in self._calls

    def add(self, call: Call) -> None:
        self._calls[call.id] = call
        self.num_calls += 1

    def drop_listener(self, link: Link) -> list[Call]:
        """Forget a client that is gone; the calls that it listened to."""
        heard = [c for c in self._calls.values() if any(one.link is link for one in c.listeners)]
        for call in heard:
            call.listeners = [other for other in call.listeners if other.link is not link]
        return heard

    def recent(self) -> list[Call]:
        return list(self._calls.values())

    @property
    def last_started(self) -> Call | None:
        """The newest call that came to ranks."""
        return next((c for c in reversed(self._calls.values()) if c.attempt is not None), None)

    def count_ahead(self, call: Call) -> int:
        """How many calls that came before it have not ended."""
        calls = self.recent()
        return sum(not other.is_final for other in calls[: calls.index(call)])

    def settle(self, call: Call) -> None:
        """A call has ended: its answers count, and the oldest ones go; the newest stays, however large."""
        self._held += sum(answer.num_bytes for answer in call.answers.values())
        while len(self._calls) > KEPT_CALLS or (self._held > KEPT_BYTES and len(self._calls) > 1):
            oldest = next(iter(self._calls.values()))
            if not oldest.is_final or oldest is call:
                return
            self._forget(oldest)

    def _forget(self, call: Call) -> None:
        del self._calls[call.id]
        self._remember(call.id)
        for answer in call.answers.values():
            self._held -= answer.num_bytes
        answered = [answer.file for answer in call.answers.values()]
        for path in (*answered, *(item.file for item in call.items), *call.unread):
            forget(path)

    def _remember(self, call_id: str) -> None:
        self._past.add(hash(call_id))
        if len(self._past) >= KEPT_IDS:
            self._older, self._past = self._past, set()
            self._lost_until, self._older_until = self._older_until, self.num_calls


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
