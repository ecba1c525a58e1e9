"""Waiting for a condition in clients, with a deadline and regular progress messages.

Agents wait in their event loops instead. Uses only the standard library.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_SAY_EVERY_S = 10.0


def wait_until(
    is_so: Callable[[], bool],
    *,
    timeout_s: float | None,
    every_s: float = 0.05,
    say: Callable[[float], None] | None = None,
) -> bool:
    """Wait until `is_so` returns True. Return False if that takes longer than `timeout_s`.

    Calls `say` every 10 s with the seconds waited so far.
    """
    started_s = time.monotonic()
    said_s = started_s
    while not is_so():
        now_s = time.monotonic()
        if timeout_s is not None and now_s - started_s >= timeout_s:
            return False
        if say is not None and now_s - said_s >= _SAY_EVERY_S:
            said_s = now_s
            say(now_s - started_s)
        left_s = every_s if timeout_s is None else min(every_s, timeout_s - (now_s - started_s))
        time.sleep(max(0.0, left_s))
    return True
