"""Notice of preemption: whether this process was asked to exit, and how much time remains.

`context.get_context` makes it, and the trainer reads it at every step. The signal handler only records the
time. The trainer decides what to save and when to stop. A loop that never reads the notice is terminated like
any process. This module does not import torch.
"""

from __future__ import annotations

import _thread
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

_USUAL_GRACE_S = 30.0  # the default of Kubernetes, and of torchrun for its workers


class Preemption:
    """Notice to exit, by SIGTERM or by `notice()`, and the seconds until the process is killed."""

    def __init__(self, *, grace_s: float | None = None) -> None:
        self.grace_s = read_grace(os.environ) if grace_s is None else grace_s
        self._is_guessed = grace_s is None and not os.environ.get(names.GRACE)
        self._deadline_s: float | None = None
        self._previous: Any = None
        self._is_listening = False
        self._is_read = False  # whether a loop reads the notice and stops by itself
        self._pid = 0  # pid of the listening process, because its children do not listen

    @property
    def is_noticed(self) -> bool:
        """True if the process was asked to exit. A loop that reads this must stop by itself."""
        self._is_read = True
        return self._deadline_s is not None

    @property
    def is_announced(self) -> bool:
        """True if the process was asked to exit. Reading this property does not acknowledge the notice."""
        return self._deadline_s is not None

    @property
    def is_over(self) -> bool:
        """True if the grace period has passed. This does not count as reading the notice."""
        return self._deadline_s is not None and time.monotonic() >= self._deadline_s

    @property
    def seconds_left(self) -> float | None:
        """Seconds until this process is killed, or None if it was not asked to exit."""
        self._is_read = True
        if self._deadline_s is None:
            return None
        return max(0.0, self._deadline_s - time.monotonic())

    @property
    def save_limit_s(self) -> float | None:
        """Time limit for a save, or None if the grace period is unknown."""
        return None if self._is_guessed else self.seconds_left

    def end_reading(self) -> None:
        """Record that the loop that read the notice has ended, so that SIGTERM ends this process again."""
        self._is_read = False

    def notice(self) -> None:
        """Ask this process to exit now. Only the first notice counts."""
        if self._deadline_s is None:
            self._deadline_s = time.monotonic() + self.grace_s

    def listen(self) -> bool:
        """Listen for SIGTERM. Return False outside the main thread, where Python cannot handle signals.

        A previous handler is still called. Without one, and if no code reads the notice, a second SIGTERM or
        the end of the grace period terminates the process.
        """
        if self._is_listening:
            return True
        if threading.current_thread() is not threading.main_thread():
            logger.warning(
                "SIGTERM is not handled, because this is not the main thread: preemption goes unnoticed"
            )
            return False
        self._previous = signal.signal(signal.SIGTERM, self._on_signal)
        self._pid = os.getpid()
        self._is_listening = True
        return True

    def stop_listening(self) -> None:
        """Restore the previous SIGTERM handler, unless another one was installed since."""
        if self._has_signal:
            signal.signal(
                signal.SIGTERM, signal.SIG_DFL if self._previous is None else self._previous
            )
        self._is_listening = False

    @property
    def _has_signal(self) -> bool:
        """True if SIGTERM is still handled here. Another handler may have been installed since."""
        return self._is_listening and signal.getsignal(signal.SIGTERM) == self._on_signal

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        is_first = self._deadline_s is None
        previous: Callable[[int, FrameType | None], Any] | Any = self._previous
        if callable(previous):
            self.notice()
            previous(number, frame)
        elif previous == signal.SIG_IGN:
            self.notice()
        elif os.getpid() != self._pid or not (is_first or self._is_read):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        elif is_first:
            self.notice()
            # Not a threading.Thread, because starting one takes a lock that the interrupted code may hold.
            _thread.start_new_thread(self._end_unread, ())

    def _end_unread(self) -> None:
        """Send SIGTERM again at the end of the grace period, unless the notice was read."""
        time.sleep(self.grace_s)
        if not self._is_read and self._has_signal:
            os.kill(os.getpid(), signal.SIGTERM)


def read_grace(environ: Mapping[str, str]) -> float:
    """Return the seconds between SIGTERM and SIGKILL, as set by the launcher."""
    text = environ.get(names.GRACE, "")
    try:
        return max(0.0, float(text)) if text else _USUAL_GRACE_S
    except ValueError:
        logger.warning("%s is %r, which is not a number of seconds", names.GRACE, text)
        return _USUAL_GRACE_S
