"""Compare attaching, copying output and warm calls of two versions of Windlass on Kubernetes.

    python benchmarks/versions_cluster.py --before PYTHON --image IMAGE [--pairs 20]

PYTHON belongs to an environment with the earlier version. Both versions take turns, as in `versions.py`. They
use the same two jobs: one idles, and one has a rank that has printed `--megabytes`. Each sample is a new
process with an empty home that attaches to the job. Its time runs from `wl.attach` until the copy of the
status or of the whole output is complete. Each version has its own compute for empty calls.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kubernetes_place import open_place
from launch import describe_machine
from versions import AFTER, BEFORE, Pair, Samples, Version, make_row, render_table, take_pairs
from warm_peer import Peer
from warm_setup import Setup, open_all, ours

import windlass as wl
from windlass.kube.client.api import connect
from windlass.waiting import wait_until

_LIMIT_S = 300.0
_LINE_BYTES = 1000
# Prints the seconds and the CPU seconds until the status, or the whole output, has arrived.
ATTACH = """
import sys, time
from pathlib import Path
import windlass as wl

ref, home, num_bytes = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
log = home / "kubernetes" / ref.rpartition("/")[2] / "attempt-0" / "rank-0.log"
began_s, began_cpu_s = time.perf_counter(), time.process_time()
job = wl.attach(ref)
status = job.status()
assert num_bytes or status.phase == "running"
while num_bytes and not (log.exists() and log.stat().st_size >= num_bytes):
    time.sleep(0.005)
print(time.perf_counter() - began_s, time.process_time() - began_cpu_s)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Namespace, image and folder of the benchmark."""

    namespace: str
    image: str
    folder: Path


@contextmanager
def running(ground: Ground, num_megabytes: int) -> Any:
    """Start a job whose rank prints `num_megabytes` and idles. Yield its reference and its log's size."""
    os.chdir(ground.folder)  # the folder is empty, so no project is uploaded
    lines = num_megabytes * 1_000_000 // _LINE_BYTES
    script = (
        f"import time; [print('x' * {_LINE_BYTES - 1}) for _ in range({lines})]; "
        "print('printed', flush=True); time.sleep(7200)"
    )
    job = wl.submit(
        ["python3", "-c", script],
        engine="kubernetes", namespace=ground.namespace, image=ground.image, timeout_s=7200,
    )  # fmt: skip
    try:
        home = Path(os.environ["WINDLASS_HOME"])
        log = home / "kubernetes" / job.id / "attempt-0" / "rank-0.log"

        def is_printed() -> bool:
            job.status()
            return log.exists() and b" printed\n" in log.read_bytes()[-100:]

        if not wait_until(is_printed, timeout_s=_LIMIT_S, every_s=0.5):
            raise SystemExit(f"{job.id} did not print {num_megabytes} MB within {_LIMIT_S:g} s")
        yield str(job.ref), log.stat().st_size
    finally:
        job.cancel(now=True)


def attach(version: Version, ref: str, num_bytes: int) -> tuple[float, float]:
    """Return the seconds and CPU seconds of a client with an empty home."""
    home = Path(tempfile.mkdtemp(dir=version.folder))
    command = [str(version.python), "-c", ATTACH, ref, str(home), str(num_bytes)]
    env = {**os.environ, "WINDLASS_HOME": str(home), "WINDLASS_ENGINE": "kubernetes"}
    done = subprocess.run(
        command, env=env, check=True, capture_output=True, text=True, timeout=_LIMIT_S
    )
    shutil.rmtree(home)
    seconds, cpu_seconds = done.stdout.split()
    print(f"{version.name}: {seconds} s, CPU {cpu_seconds} s", file=sys.stderr, flush=True)
    return float(seconds), float(cpu_seconds)


def measure_attach(ground: Ground, pair: Pair, num_pairs: int, megabytes: int) -> list[Samples]:
    """Return samples of seconds and of CPU seconds."""
    cpu: dict[str, list[float]] = {version.name: [] for version in pair}
    with running(ground, megabytes) as (ref, num_bytes):

        def one(version: Version) -> float:
            seconds, cpu_seconds = attach(version, ref, num_bytes if megabytes else 0)
            cpu[version.name].append(cpu_seconds)
            return seconds

        samples = take_pairs(pair, num_pairs, one)
    return [samples, {name: values[1:] for name, values in cpu.items()}]


def measure_empty(ground: Ground, pair: Pair, num_pairs: int, calls: int) -> list[Samples]:
    """Measure consecutive empty calls on one kept rank of one pod."""
    with ExitStack() as stack:
        peers = {version.name: open_warm(stack, ground, version) for version in pair}

        def one(version: Version) -> float:
            return statistics.median(peers[version.name].ask("empty", num=calls))

        return [take_pairs(pair, num_pairs, one)]


def open_warm(stack: ExitStack, ground: Ground, version: Version) -> Peer:
    setup = Setup(
        folder=version.folder,
        rounds=1,
        calls=1,
        big_bytes=0,
        pause_s=0.0,
        pythons={},
        torchrun=Path(),
    )
    where = {"engine": "kubernetes", "namespace": ground.namespace, "image": ground.image}
    start = ours(setup, ranks=1, kept=True, **where)
    start = replace(start, name=version.name, command=[str(version.python), *start.command[1:]])
    return open_all(stack, [start])[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--before", type=Path, required=True, help="Python of the earlier version")
    parser.add_argument(
        "--image", required=True, help="image with Python and torch, present on the nodes"
    )
    parser.add_argument(
        "--namespace", default="windlass-versions", help="an empty or new namespace"
    )
    parser.add_argument(
        "--pairs", type=int, default=20, help="measured pairs after a warm-up (default: 20)"
    )
    parser.add_argument(
        "--calls", type=int, default=100, help="consecutive empty calls (default: 100)"
    )
    parser.add_argument(
        "--megabytes", type=int, default=50, help="megabytes of output (default: 50)"
    )
    parser.add_argument(
        "--only", default="attach,output,empty", help="cases (default: attach,output,empty)"
    )
    parser.add_argument("--json", type=Path, help="write all measurements to this file")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="windlass-versions-"))
    os.environ["WINDLASS_HOME"] = str(folder / "home")
    before = options.before.absolute()
    versions = []
    for name, python in ((BEFORE, before), (AFTER, Path(sys.executable))):
        (folder / name).mkdir()
        versions.append(Version(name=name, python=python, folder=folder / name))
    pair = (versions[0], versions[1])
    ground = Ground(namespace=options.namespace, image=options.image, folder=folder)
    cases: dict[str, Callable[[], list[Samples]]] = {
        "attach": lambda: measure_attach(ground, pair, options.pairs, 0),
        "output": lambda: measure_attach(ground, pair, options.pairs, options.megabytes),
        "empty": lambda: measure_empty(ground, pair, options.pairs, options.calls),
    }
    rows = []
    try:
        with open_place(connect(), options.namespace):
            for case in options.only.split(","):
                for samples, unit in zip(cases[case](), ("", ", CPU"), strict=False):
                    rows.append(make_row(case + unit, samples))
                    print(render_table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        options.json.write_text(json.dumps({"machine": describe_machine(), "rows": rows}, indent=1))
    print(render_table(rows))


if __name__ == "__main__":
    main()
