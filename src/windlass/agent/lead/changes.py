"""Wait in the agent's event loop until a condition holds, checking it again after every change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Changes(asyncio.Event):
    """Event to set after every change. Only one task at a time may wait for a condition."""

    async def until(self, is_so: Callable[[], bool], *, timeout_s: float | None) -> bool:
        """Wait for a condition. Return False if it is still false after `timeout_s`."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while not is_so():
            self.clear()
            left_s = None if deadline is None else deadline - loop.time()
            if left_s is not None and left_s <= 0:
                return False
            try:
                await asyncio.wait_for(self.wait(), left_s)
            except asyncio.TimeoutError:
                return is_so()
        return True
