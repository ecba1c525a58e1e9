"""Somebody wants a job or a compute to end: why, how its ranks hear of it, and whether at once.

A record that is filled once, and hurried after that. Nothing is ended here.
"""

from __future__ import annotations

import signal

from windlass.wire.status import Verdict


class StopRequest:
    """The first reason counts; asked again, it may have to be at once."""

    def __init__(self) -> None:
        self.verdict: Verdict | None = None
        self.signal: int = signal.SIGTERM
        self.now = False

    def ask(self, verdict: Verdict, *, now: bool, signum: int) -> bool:
        """Ask for the end; whether it has to be at once, and had not before."""
        if self.verdict is None:
            self.verdict, self.signal = verdict, signum
        is_hurried = now and not self.now
        self.now |= now
        return is_hurried

    @property
    def is_asked(self) -> bool:
        return self.verdict is not None

    def choose(self, verdict: Verdict | None) -> Verdict | None:
        """What counts: a failure that came before the request, else the request."""
        if self.verdict is None or (verdict is not None and verdict.at_s <= self.verdict.at_s):
            return verdict
        return self.verdict
