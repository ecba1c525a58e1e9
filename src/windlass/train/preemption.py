"""Notice of preemption: this process was asked to end, and how long it has left.

Made by `context.get_context`, read by the trainer at every step. The signal handler only writes down the
time: what is saved, and when the loop ends, is decided there. No torch in here.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from windlass import names

logger = logging.getLogger(__name__)

_USUAL_GRACE_S = 30.0  # Kubernetes' own, and what torchrun gives its workers


class Preemption:
    """Whether the end was announced, by SIGTERM or by `notice()`, and the seconds until it comes by force."""

    def __init__(self, *, grace_s: float | None = None) -> None:
        self.grace_s = read_grace(os.environ) if grace_s is None else grace_s
        self._is_guessed = grace_s is None and not os.environ.get(names.GRACE)
        self._deadline_s: float | None = None
        self._previous: Any = None
        self._is_listening = False

    @property
    def is_noticed(self) -> bool:
        return self._deadline_s is not None

    @property
    def seconds_left(self) -> float | None:
        """Until this process is killed; None while nothing was announced."""
        if self._deadline_s is None:
            return None
        return max(0.0, self._deadline_s - time.monotonic())

    @property
    def save_limit_s(self) -> float | None:
        """For a save, after which it is too late; None where nobody has told how long the grace is."""
        return None if self._is_guessed else self.seconds_left

    def notice(self) -> None:
        """Take the end as announced now; the first announcement counts."""
        if self._deadline_s is None:
            self._deadline_s = time.monotonic() + self.grace_s

    def listen(self) -> bool:
        """Notice SIGTERM from now on; False where that cannot be: not on the main thread.

        A handler that was there before is called as well.
        """
        if self._is_listening:
            return True
        if threading.current_thread() is not threading.main_thread():
            logger.warning("preemption is not noticed: SIGTERM is handled on the main thread only")
            return False
        self._previous = signal.signal(signal.SIGTERM, self._on_signal)
        self._is_listening = True
        return True

    def stop_listening(self) -> None:
        """Give SIGTERM back to what had it before, unless somebody else has taken it meanwhile."""
        if self._is_listening and signal.getsignal(signal.SIGTERM) == self._on_signal:
            signal.signal(
                signal.SIGTERM, signal.SIG_DFL if self._previous is None else self._previous
            )
        self._is_listening = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.notice()
        previous: Callable[[int, FrameType | None], Any] | Any = self._previous
        if callable(previous):
            previous(number, frame)


def read_grace(environ: Mapping[str, str]) -> float:
    """The seconds between SIGTERM and SIGKILL, as the launcher tells them."""
    text = environ.get(names.GRACE, "")
    try:
        return max(0.0, float(text)) if text else _USUAL_GRACE_S
    except ValueError:
        logger.warning("%s is %r, which is no number of seconds", names.GRACE, text)
        return _USUAL_GRACE_S
