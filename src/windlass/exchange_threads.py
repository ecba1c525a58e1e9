"""Exit handler that waits for torch's tensor-exchange threads.

A gloo collective returns to its caller as soon as the values have arrived. The thread that ran it releases
the tensor a moment later, and needs the interpreter for that. On a busy machine the interpreter may already
be shutting down. It then kills that thread inside C++ code: "terminate called without an active exception".
The process ends with SIGABRT, and a rank that finished its work counts as failed.

The exit handler therefore waits until these threads are idle. A thread that waits inside a collective for
absent peers counts as idle. This module runs in users' processes, so it uses only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator

_TASKS = "/proc/self/task"  # exists only on Linux, so other systems do not wait
_NAME = b"(pt_gloo_runloop"  # torch's name for these threads
_NAMED_SINCE = (2, 11)
_BUSY_STATES = (b"R", b"D")  # running or runnable, and waiting for a disk
_LIMIT_S = 30.0
_UNNAMED_LIMIT_S = 2.0  # short, because unrelated threads that spin while idle may be included
_FIRST_S, _LONGEST_S = 0.0005, 0.01


def wait_for_exchange_threads() -> None:
    """Wait until all exchange threads were idle twice in a row. Return immediately if there are none."""
    version = _read_torch_version()
    if version is None:
        return
    is_named = version >= _NAMED_SINCE
    until_s = time.monotonic() + (_LIMIT_S if is_named else _UNNAMED_LIMIT_S)
    num_idle_checks, pause_s = 0, _FIRST_S
    while num_idle_checks < 2 and time.monotonic() < until_s:
        states = list(_read_states(is_named=is_named))
        if not states:
            return
        # An idle thread may be waiting for the interpreter, which it can get during this sleep.
        is_busy = any(state in _BUSY_STATES for state in states)
        num_idle_checks = 0 if is_busy else num_idle_checks + 1
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_S)


def _read_torch_version() -> tuple[int, ...] | None:
    """Return torch's version, or None if torch.distributed is not loaded."""
    if "torch.distributed.distributed_c10d" not in sys.modules:
        return None
    text = str(getattr(sys.modules.get("torch"), "__version__", ""))
    numbers = text.split(".")[:2]
    return tuple(map(int, numbers)) if all(map(str.isdigit, numbers)) else _NAMED_SINCE


def _read_states(*, is_named: bool) -> Iterator[bytes]:
    """Yield the state letter of each exchange thread, as /proc reports it.

    If this torch does not name its threads, include all threads that Python did not start.
    """
    known = {str(thread.native_id) for thread in threading.enumerate()}
    try:
        tasks = os.listdir(_TASKS)
    except OSError:
        return
    for task in tasks:
        with contextlib.suppress(OSError):  # the thread has just ended
            with open(f"{_TASKS}/{task}/stat", "rb") as file:
                name, _, rest = file.read().rpartition(b")")
            if name.endswith(_NAME) if is_named else task not in known:
                yield rest.split()[0]
