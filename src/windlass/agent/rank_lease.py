"""Lease of a node's ranks: the time until which they may run without renewal by their agent.

The agent renews the lease in memory that it shares with its fork server, which ends all ranks when the lease
lapses. A suspended or stuck agent therefore cannot keep them alive. A kernel timer kills the fork server and
its ranks in case the fork server is suspended as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import struct
import tempfile
import time

_UNTIL = struct.Struct("=d")
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_TIMER_ABSTIME = 1


def read_clock() -> float:
    """Return the seconds since boot, including suspended time if the system has such a clock."""
    return time.clock_gettime(_CLOCK)


class RankLease:
    """Time until which ranks may run, stored in the shared memory of descriptor `fd`."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._memory = mmap.mmap(fd, _UNTIL.size)

    @classmethod
    def make(cls) -> RankLease:
        """Make a lease that has already lapsed, so that no rank may run yet."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("windlass-lease")
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        os.ftruncate(fd, _UNTIL.size)
        return cls(fd)

    def extend(self, until_s: float) -> None:
        """Extend the lease until a time of `read_clock`."""
        self._memory[:] = _UNTIL.pack(until_s)

    @property
    def until_s(self) -> float:
        return float(_UNTIL.unpack(self._memory[:])[0])

    @property
    def left_s(self) -> float:
        """Seconds until the lease lapses, negative afterwards."""
        return self.until_s - read_clock()

    def close(self) -> None:
        self._memory.close()
        os.close(self.fd)


class _SignalEvent(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),  # 0: SIGEV_SIGNAL
        ("rest", ctypes.c_char * 48),
    )


class _TimerValue(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class KillTimer:
    """Kernel timer that sends SIGKILL to this process at a time of `read_clock`, even while it is suspended.

    Does nothing on systems without such timers. Forked processes do not inherit it.
    """

    def __init__(self) -> None:
        self._timer = ctypes.c_void_p()
        self._settime = None
        with contextlib.suppress(OSError, AttributeError):
            library = _find_library()
            event = _SignalEvent(signal=signal.SIGKILL)
            if library.timer_create(_CLOCK, ctypes.byref(event), ctypes.byref(self._timer)) == 0:
                self._settime = library.timer_settime

    def set_in(self, seconds: float) -> None:
        """Kill this process after `seconds`, unless the timer is set again before."""
        self._set(read_clock() + seconds)

    def disarm(self) -> None:
        self._set(0.0)

    def _set(self, at_s: float) -> None:
        if self._settime is not None:
            value = _TimerValue(value_s=int(at_s), value_ns=int(at_s % 1 * 1e9))
            self._settime(self._timer, _TIMER_ABSTIME, ctypes.byref(value), None)


def _find_library() -> ctypes.CDLL:
    """Return the library with POSIX timers: the C library itself since glibc 2.34, librt before."""
    own = ctypes.CDLL(None)
    return own if hasattr(own, "timer_create") else ctypes.CDLL("librt.so.1")
