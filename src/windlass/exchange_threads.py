"""Threads of torch that exchange tensors, at the end of a program: they let go before the interpreter does.

A collective of gloo is over for its caller when the values are there; the thread that did it lets go of the
tensor a moment later, and needs the interpreter for that. One that is late, on a busy machine, finds an
interpreter that is ending already, and is ended in the middle of C++: "terminate called without an active
exception", SIGABRT, a rank that has done all its work counts as failed. So an exit handler waits until these
threads rest. One that rests inside a collective, because its peers are not there, is not waited for.
Runs in users' processes: standard library only.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator

_TASKS = "/proc/self/task"  # Linux alone has it; elsewhere nothing is waited for
_NAME = b"(pt_gloo_runloop"  # as torch calls them
_NAMED_SINCE = (2, 11)
_AT_WORK = (b"R", b"D")  # running or to run, waiting for a disk
_LIMIT_S = 30.0
_UNNAMED_LIMIT_S = 2.0  # others may be among them, which spin while they have nothing to do
_FIRST_S, _LONGEST_S = 0.0005, 0.01


def wait_for_exchange_threads() -> None:
    """Return when every such thread has rested twice in a row, and at once where there is none."""
    version = _read_torch_version()
    if version is None:
        return
    is_named = version >= _NAMED_SINCE
    until_s = time.monotonic() + (_LIMIT_S if is_named else _UNNAMED_LIMIT_S)
    num_rests, pause_s = 0, _FIRST_S
    while num_rests < 2 and time.monotonic() < until_s:
        states = list(_read_states(is_named=is_named))
        if not states:
            return
        # resting may be waiting for the interpreter, which others get while this one sleeps
        num_rests = 0 if any(state in _AT_WORK for state in states) else num_rests + 1
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_S)


def _read_torch_version() -> tuple[int, ...] | None:
    """None where nobody has loaded what exchanges."""
    if "torch.distributed.distributed_c10d" not in sys.modules:
        return None
    text = str(getattr(sys.modules.get("torch"), "__version__", ""))
    numbers = text.split(".")[:2]
    return tuple(map(int, numbers)) if all(map(str.isdigit, numbers)) else _NAMED_SINCE


def _read_states(*, is_named: bool) -> Iterator[bytes]:
    """What each of the threads is doing, by the letter that the system has for it.

    Where torch has no name for them, of all threads that Python does not know.
    """
    known = {str(thread.native_id) for thread in threading.enumerate()}
    try:
        tasks = os.listdir(_TASKS)
    except OSError:
        return
    for task in tasks:
        with contextlib.suppress(OSError):  # one that has just ended
            with open(f"{_TASKS}/{task}/stat", "rb") as file:
                name, _, rest = file.read().rpartition(b")")
            if name.endswith(_NAME) if is_named else task not in known:
                yield rest.split()[0]
