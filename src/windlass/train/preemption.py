"""Notice of preemption: this process was asked to end, and how long it has left.

Made by `context.get_context`, read by the trainer at every step. The signal handler only writes down the
time: what is saved, and when the loop ends, is decided there. A loop that never reads the notice is ended as
any process is. No torch in here.
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

_USUAL_GRACE_S = 30.0  # Kubernetes' own, and what torchrun gives its workers


class Preemption:
    """Whether the end was announced, by SIGTERM or by `notice()`, and the seconds until it comes by force."""

    def __init__(self, *, grace_s: float | None = None) -> None:
        self.grace_s = read_grace(os.environ) if grace_s is None else grace_s
        self._is_guessed = grace_s is None and not os.environ.get(names.GRACE)
        self._deadline_s: float | None = None
        self._previous: Any = None
        self._is_listening = False
        self._is_read = False  # by a loop that ends by itself
        self._pid = 0  # of the process that listens; its children do not

    @property
    def is_noticed(self) -> bool:
        """True if the end was announced. A loop that reads this must end by itself."""
        self._is_read = True
        return self._deadline_s is not None

    @property
    def is_announced(self) -> bool:
        """True if the end was announced. Asking this is not reading: a loop may still ignore the notice."""
        return self._deadline_s is not None

    @property
    def is_over(self) -> bool:
        """True if the end was announced and the grace has passed; this does not read the notice either."""
        return self._deadline_s is not None and time.monotonic() >= self._deadline_s

    @property
    def seconds_left(self) -> float | None:
        """Until this process is killed; None while nothing was announced."""
        self._is_read = True
        if self._deadline_s is None:
            return None
        return max(0.0, self._deadline_s - time.monotonic())

    @property
    def save_limit_s(self) -> float | None:
        """For a save, after which it is too late; None where nobody has told how long the grace is."""
        return None if self._is_guessed else self.seconds_left

    def end_reading(self) -> None:
        """Note that the loop that reads the notice has ended: SIGTERM may end this process again."""
        self._is_read = False

    def notice(self) -> None:
        """Take the end as announced now; the first announcement counts."""
        if self._deadline_s is None:
            self._deadline_s = time.monotonic() + self.grace_s

    def listen(self) -> bool:
        """Notice SIGTERM from now on; False where that cannot be: not on the main thread.

        A handler that was there before is called as well. Where there was none and nothing reads the notice,
        the second SIGTERM, or the end of the grace, ends the process as if nothing listened.
        """
        if self._is_listening:
            return True
        if threading.current_thread() is not threading.main_thread():
            logger.warning("preemption is not noticed: SIGTERM is handled on the main thread only")
            return False
        self._previous = signal.signal(signal.SIGTERM, self._on_signal)
        self._pid = os.getpid()
        self._is_listening = True
        return True

    def stop_listening(self) -> None:
        """Give SIGTERM back to what had it before, unless somebody else has taken it meanwhile."""
        if self._has_signal:
            signal.signal(
                signal.SIGTERM, signal.SIG_DFL if self._previous is None else self._previous
            )
        self._is_listening = False

    @property
    def _has_signal(self) -> bool:
        """True if SIGTERM is still ours: another handler may have been installed since."""
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
            # not a threading.Thread: starting one takes a lock that the interrupted code may hold
            _thread.start_new_thread(self._end_unread, ())

    def _end_unread(self) -> None:
        """Signal this process again at the end of the grace, unless the notice was read."""
        time.sleep(self.grace_s)
        if not self._is_read and self._has_signal:
            os.kill(os.getpid(), signal.SIGTERM)


def read_grace(environ: Mapping[str, str]) -> float:
    """The seconds between SIGTERM and SIGKILL, as the launcher tells them."""
    text = environ.get(names.GRACE, "")
    try:
        return max(0.0, float(text)) if text else _USUAL_GRACE_S
    except ValueError:
        logger.warning("%s is %r, which is no number of seconds", names.GRACE, text)
        return _USUAL_GRACE_S
