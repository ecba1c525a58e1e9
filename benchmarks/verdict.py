"""Measure the time from the death of a rank to the verdict that names it.

    python benchmarks/verdict.py [REPEATS]

There are two nodes with two ranks each. The victim is killed with SIGKILL, and the clock stops when
`job.verdict()` answers. One case has peers that exit on SIGTERM. In the other, peers ignore SIGTERM, which
takes the whole grace period. The target is 1 s.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from pathlib import Path
from tempfile import mkdtemp

import windlass as wl


def wait(flag: str, stubborn: bool) -> None:
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(f"{flag}-{os.environ['RANK']}").touch()
    time.sleep(600)


def measure(stubborn: bool) -> float:
    flag = Path(mkdtemp(), "flag")
    job = wl.submit(wait, (str(flag), stubborn), nodes=2, procs=2, grace_s=30)
    while len(list(flag.parent.glob("flag-*"))) < 4 or not all(r.pid for r in job.status().ranks):
        time.sleep(0.01)
    victim = job.status().ranks[3].pid
    assert victim is not None
    started_s = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    while (verdict := job.verdict()) is None:
        time.sleep(0.001)
    took_s = time.monotonic() - started_s
    assert (verdict.rank, verdict.signal) == (3, "SIGKILL"), verdict
    job.cancel(now=True)
    job.wait(60)
    job.remove()
    return took_s


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    print("| the other ranks | median | slowest |\n|---|--:|--:|")
    for stubborn in (False, True):
        times = [measure(stubborn) for _ in range(repeats)]
        name = "ignore SIGTERM" if stubborn else "exit on SIGTERM"
        print(f"| {name} | {statistics.median(times) * 1e3:.0f} ms | {max(times) * 1e3:.0f} ms |")


if __name__ == "__main__":
    main()
