"""Calls that ran lately: they stay, so that a client that went away can ask again.

Of older ones it keeps that they were, so that no client is ever told that a call which ran was not heard of.
"""

from __future__ import annotations

from collections import OrderedDict

from windlass.agent.lead.call_state import Call
from windlass.agent.link.agent_link import Link
from windlass.wire.payloads import forget

KEPT_CALLS = 200
KEPT_BYTES = 256 << 20
KEPT_IDS = 50_000  # at least, and twice as many at most: a few MB


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
