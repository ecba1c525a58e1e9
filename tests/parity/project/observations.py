"""Observations that code makes in its process, however it was started: one function per plain value."""

from __future__ import annotations

import asyncio
import builtins
import ctypes
import gc
import locale
import logging
import multiprocessing
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
import tracemalloc
import warnings
from collections.abc import Callable
from typing import Any

ALL: dict[str, Callable[[], Any]] = {}


def observed(function: Callable[[], Any]) -> Callable[[], Any]:
    ALL[function.__name__] = function
    return function


def observe() -> dict[str, Any]:
    """Make every observation, with the error as the value of one that raises."""
    return {name: attempt(function) for name, function in ALL.items()}


def attempt(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"


@observed
def flags():
    return str(sys.flags)


@observed
def interpreter():
    return [sys.executable, sys.prefix, sys.base_prefix, sys.exec_prefix, sys.version]


@observed
def warning_options():
    return [sys.warnoptions, [str(one) for one in warnings.filters]]


@observed
def x_options():
    return sys._xoptions


@observed
def bytecode_is_written():
    return [sys.dont_write_bytecode, sys.pycache_prefix]


@observed
def recursion_limit():
    return sys.getrecursionlimit()


@observed
def depth_of_recursion():
    """Return the recursion depth in hundreds of calls. A launcher's own frames must not reduce it."""

    def deeper(depth):
        try:
            return deeper(depth + 1)
        except RecursionError:
            return depth

    return round(deeper(0), -2)


@observed
def switch_interval():
    return sys.getswitchinterval()


@observed
def tracing():
    return [str(sys.gettrace()), str(sys.getprofile()), tracemalloc.is_tracing()]


@observed
def hooks_of_the_interpreter():
    return [
        sys.excepthook is sys.__excepthook__,
        sys.displayhook is sys.__displayhook__,
        sys.unraisablehook is sys.__unraisablehook__,
        sys.breakpointhook is sys.__breakpointhook__,
        threading.excepthook is threading.__excepthook__,
        sys.get_asyncgen_hooks() == (None, None),
    ]


@observed
def builtin_names():
    return sorted(vars(builtins))


@observed
def stdin_state():
    return [sys.stdin.closed, sys.stdin.isatty(), sys.stdin.fileno(), sys.stdin.read()]


@observed
def stream_encodings():
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return [[one.encoding, one.errors, one.name, one.mode, str(one.newlines)] for one in streams]


@observed
def stream_identity():
    return [sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__, sys.stdin is sys.__stdin__]


@observed
def stream_kinds():
    """Return the kinds of the streams. A script must not see a terminal."""
    return [os.isatty(1), os.isatty(2), sys.stdout.isatty(), sys.stderr.isatty()]


@observed
def stderr_buffering():
    return [sys.stderr.line_buffering, sys.stderr.write_through]


@observed
def stdout_buffering():
    return [sys.stdout.line_buffering, sys.stdout.write_through]


@observed
def locale_settings():
    return [locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(False)]


@observed
def filesystem_encoding():
    return [sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()]


@observed
def time_zone():
    return [time.tzname, time.timezone]


@observed
def working_directory():
    return os.getcwd()


@observed
def umask():
    mask = os.umask(0o22)
    os.umask(mask)
    return mask


@observed
def user_and_groups():
    return [os.getresuid(), os.getresgid(), sorted(os.getgroups())]


@observed
def limits():
    names = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    return {name: resource.getrlimit(getattr(resource, name)) for name in names}


@observed
def priority():
    return [os.nice(0), os.sched_getscheduler(0), open("/proc/self/oom_score_adj").read()]


@observed
def processors():
    return [sorted(os.sched_getaffinity(0)), os.cpu_count()]


@observed
def signal_handlers():
    return {
        one.name: _name_of(signal.getsignal(one))
        for one in sorted(signal.valid_signals())
        if one in NAMED
    }


NAMED = {one for one in signal.Signals if one not in (signal.SIGKILL, signal.SIGSTOP)}
LIBC = 0b11 << 31  # used by the C library itself
# faulthandler uses these in every rank, because the stack of a crash is useful
CRASHES = (signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL)


def _name_of(handler):
    return getattr(handler, "name", None) or getattr(handler, "__qualname__", str(handler))


def _read_mask(name):
    [line] = [one for one in open("/proc/self/status") if one.startswith(name)]
    return int(line.split()[1], 16)


@observed
def signals_caught():
    """Return the caught signals according to the kernel, except those of faulthandler."""
    mask = _read_mask("SigCgt") & ~LIBC
    for one in CRASHES:
        mask &= ~(1 << (one - 1))
    return hex(mask)


@observed
def signals_ignored():
    return hex(_read_mask("SigIgn") & ~LIBC)


@observed
def signals_blocked():
    return [hex(_read_mask("SigBlk")), sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))]


@observed
def signal_wakeup_and_timers():
    wakeup = signal.set_wakeup_fd(-1)
    return [wakeup, signal.getitimer(signal.ITIMER_REAL), signal.alarm(0)]


@observed
def open_files():
    """Return the open descriptors except the three standard ones and the one that lists them."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}").partition(":")[0]
        except OSError:
            continue
    return {fd: kind for fd, kind in found.items() if fd > 2 and not kind.startswith("/proc/")}


@observed
def standard_descriptors():
    return [stat.S_IFMT(os.fstat(0).st_mode), [os.get_inheritable(fd) for fd in range(3)]]


@observed
def threads():
    here = threading.current_thread()
    return [
        [one.name for one in threading.enumerate()],
        here is threading.main_thread(),
        here.daemon,
        here.native_id == os.getpid(),
        here.ident == threading.get_ident(),
    ]


@observed
def kernel_threads():
    return len(os.listdir("/proc/self/task"))


@observed
def children():
    """Return a child process or "none". There must be none, because `os.wait` would wait for it."""
    try:
        return os.waitpid(-1, os.WNOHANG)[0]
    except ChildProcessError:
        return "none"


@observed
def parent_is_alive():
    return os.getppid() > 1


@observed
def garbage_collection():
    return [gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks), len(gc.garbage)]


@observed
def logging_state():
    root = logging.getLogger()
    return [
        root.level,
        [str(one) for one in root.handlers],
        root.manager.disable,
        logging.raiseExceptions,
    ]


@observed
def multiprocessing_state():
    process = multiprocessing.current_process()
    return [
        multiprocessing.get_start_method(allow_none=True),
        process.name,
        process.daemon,
        multiprocessing.parent_process() is None,
        multiprocessing.active_children(),
    ]


@observed
def asyncio_works():
    async def work():
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", "raise SystemExit(4)")
        return [await child.wait(), await asyncio.to_thread(lambda: 5)]

    return [asyncio.run(work()), str(asyncio._get_running_loop())]


@observed
def subprocesses_work():
    done = subprocess.run(["sh", "-c", "umask; exit 3"], capture_output=True, text=True)
    return [done.returncode, done.stdout, os.system("exit 2")]


@observed
def alarm_interrupts():
    heard = []
    before = signal.signal(signal.SIGALRM, lambda *_: heard.append("alarm"))
    signal.setitimer(
        signal.ITIMER_REAL, 0.01, 0.01
    )  # sent again, in case the first one arrives before the pause
    signal.pause()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    return heard[:1]


@observed
def environment_of_c():
    """Return whether C code and children see the values of `os.environ`."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    names = ("RANK", "WORLD_SIZE", "MASTER_PORT", "OMP_NUM_THREADS", "PATH", "HOME")
    return all(getenv(name.encode()) == os.environb.get(name.encode()) for name in names)


@observed
def coerced_hash():
    """Return the hash of a text, which is comparable only with PYTHONHASHSEED."""
    return hash("text") if os.environ.get("PYTHONHASHSEED") else None


@observed
def assertions_are_checked():
    try:
        assert not builtins
    except AssertionError:
        return [True, __debug__]
    return [False, __debug__]
