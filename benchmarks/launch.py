"""Compare start, re-run and restart with torchrun, interleaved in one run, as ratios of medians.

    python benchmarks/launch.py [--repeats 5] [--only cold,restart] [--ranks 2,8] [--json FILE]

The clock of a start begins just before the exec of the command line, with no process of either
contestant alive. It stops when rank 0 has finished its first all-reduce. The clock of a restart
runs from SIGKILL of one rank until every rank has finished an all-reduce of the next attempt. Each
run must exit with 0, have the right sum on every rank, and end all its processes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
BIN = Path(sys.executable).parent
MARK = "BENCH_RUN"  # environment variable of all processes that the benchmark starts
LIMIT_S = 180.0
UNPRELOADED = (
    "asyncio,decimal,email.mime.multipart,http.server,sqlite3,unittest.mock,xml.dom.minidom,"
    "numpy.fft,numpy.polynomial,numpy.testing,jinja2,networkx,sympy,"
    "torch.distributed.fsdp,torch.distributed.checkpoint,torch.utils.data"
)


@dataclass(frozen=True)
class Case:
    """A measurement of both contestants."""

    name: str
    ranks: int
    measure: Callable[[Contestant, int], Sample]
    target: float | None = None  # maximum ratio

    @property
    def label(self) -> str:
        return f"{self.name}, {self.ranks} ranks"


@dataclass(frozen=True)
class Sample:
    """One measured time, with intermediate moments in seconds since the clock began."""

    seconds: float
    moments: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Contestant:
    name: str
    command: Callable[[Path, int, int], list[str]]  # script, ranks, restarts
    env: dict[str, str] = field(default_factory=dict)
    restart_env: dict[str, str] = field(default_factory=dict)  # applies only to measured restarts


def windlass_command(program: Path) -> Callable[[Path, int, int], list[str]]:
    def command(script: Path, ranks: int, restarts: int) -> list[str]:
        where = ["--nodes", "1", "--procs", str(ranks), "--restarts", str(restarts)]
        return [str(program), "run", str(script), *where]

    return command


def torchrun_command(script: Path, ranks: int, restarts: int) -> list[str]:
    """Return the command of torchrun's documentation, with a free port instead of 29500."""
    flags = ["--nproc-per-node", str(ranks)]
    if restarts:  # ranks with their own store cannot share a port with torchrun
        flags += ["--standalone", "--max-restarts", str(restarts)]
    else:
        flags += ["--master-port", str(_free_port())]
    return [str(BIN / "torchrun"), *flags, str(script)]


# -- running one ------------------------------------------------------------------------------------


@contextmanager
def launched(
    contestant: Contestant, script: str, ranks: int, *, restarts: int = 0, imports: str = ""
) -> Iterator[Run]:
    """Start a contestant and yield its run. Exit the benchmark if it fails or leaves processes running."""
    mark = f"{MARK}={uuid.uuid4().hex}"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        extra = {**contestant.env, **(contestant.restart_env if restarts else {})}
        env = {**os.environ, **extra, "BENCH_OUT": folder, MARK: mark.partition("=")[2]}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # cache byte code, as users do
        env["BENCH_IMPORTS"] = imports
        command = contestant.command(SCRIPTS / script, ranks, restarts)
        with (out / "output").open("wb") as output:
            began_s = time.time()
            process = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
            try:
                yield Run(contestant.name, began_s, out, process)
                code = process.wait(timeout=LIMIT_S)
            finally:
                process.kill()
                process.wait()
                remaining = _wait_for_none(mark)
        if code != 0:
            _fail(out, f"{contestant.name} exited with {code}: {' '.join(command)}")
        if remaining:
            _fail(out, f"{contestant.name} did not end {len(remaining)} process(es): {remaining}")


@dataclass(frozen=True)
class Run:
    """A run in progress, with the start of its clock and the folder its ranks write to."""

    name: str
    began_s: float
    out: Path
    process: subprocess.Popen[bytes]

    def wait_for(self, names: list[str]) -> None:
        """Wait until all of these files exist."""
        deadline = time.monotonic() + LIMIT_S
        while not all((self.out / name).exists() for name in names):
            if self.process.poll() not in (None, 0):
                _fail(self.out, f"{self.name} exited with {self.process.returncode}")
            if time.monotonic() > deadline:
                _fail(self.out, f"{self.name}: waited {LIMIT_S:g} s for {names}")
            time.sleep(0.02)


def measure_start(contestant: Contestant, ranks: int, imports: str = "") -> Sample:
    """Measure from the exec of the command line to rank 0's first all-reduce."""
    with launched(contestant, "first_all_reduce.py", ranks, imports=imports) as run:
        run.wait_for([f"rank-{rank}" for rank in range(ranks)])
        stamps = json.loads((run.out / "rank-0").read_text())
    moments = {name: at_s - run.began_s for name, at_s in stamps.items()}
    return Sample(moments["reduced"], moments)


def measure_unpreloaded(contestant: Contestant, ranks: int) -> Sample:
    """Measure a start with a script that imports modules which are not preloaded."""
    return measure_start(contestant, ranks, imports=UNPRELOADED)


def measure_rerun(contestant: Contestant, ranks: int) -> Sample:
    """Measure a second start, right after the first run has ended."""
    measure_start(contestant, ranks)
    return measure_start(contestant, ranks)


def kill_last_rank(run: Run, ranks: int) -> tuple[float, list[list[str]]]:
    """Kill the last rank once all have begun. Return when, and what each rank of the next attempt wrote."""
    before = [f"attempt-0-rank-{rank}" for rank in range(ranks)]
    after = [f"attempt-1-rank-{rank}" for rank in range(ranks)]
    run.wait_for(before)
    victim = int((run.out / before[-1]).read_text().split()[0])
    killed_s = time.time()
    os.kill(victim, signal.SIGKILL)
    run.wait_for(after)
    return killed_s, [(run.out / name).read_text().split() for name in after]


def measure_restart(contestant: Contestant, ranks: int) -> Sample:
    """Measure from SIGKILL of the last rank until every rank steps in the next attempt."""
    with launched(contestant, "restarted.py", ranks, restarts=1) as run:
        killed_s, stamps = kill_last_rank(run, ranks)
    stepping_s = [float(stamp[1]) for stamp in stamps]
    moments = {"first rank steps": min(stepping_s) - killed_s}
    return Sample(max(stepping_s) - killed_s, moments)


# -- processes and failures ----------------------------------------------------------------------------


def _wait_for_none(mark: str) -> list[str]:
    """Wait up to 3 s for all marked processes to end. Return the command lines of the others."""
    deadline = time.monotonic() + 3.0
    while (remaining := _find_marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return [_read(path.parent / "cmdline").replace("\0", " ")[:200] for path in remaining]


def _find_marked(mark: str) -> list[Path]:
    wanted = f"\0{mark}\0"
    found = Path("/proc").glob("[0-9]*/environ")
    return [path for path in found if wanted in f"\0{_read(path)}\0"]


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _fail(out: Path, message: str) -> None:
    sys.stderr.write(_read(out / "output")[-4000:])
    raise SystemExit(f"launch: {message}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# -- the command ---------------------------------------------------------------------------------------


def make_cases(ranks: list[int], only: list[str]) -> list[Case]:
    """Return the cases in `only`, or all of them, for each number of ranks."""
    cold = {2: 0.45, 8: 0.35}
    cases = []
    for num in ranks:
        cases += [
            Case("cold", num, measure_start, cold.get(num)),
            Case("cold-imports", num, measure_unpreloaded),
            Case("re-run", num, measure_rerun),
            Case("restart", num, measure_restart, 0.10),
        ]
    return [case for case in cases if not only or case.name in only]


def run_case(case: Case, pair: tuple[Contestant, Contestant], repeats: int) -> dict[str, object]:
    """Run a warm-up of both contestants, then both in turn. The order is reversed every time."""
    samples: dict[str, list[Sample]] = {contestant.name: [] for contestant in pair}
    for repeat in range(repeats + 1):
        for contestant in pair if repeat % 2 else pair[::-1]:
            sample = case.measure(contestant, case.ranks)
            if repeat > 0:
                samples[contestant.name].append(sample)
            note = "" if repeat else " (warm-up)"
            _log(f"{case.label}: {contestant.name} {sample.seconds:.3f} s{note}")
    times = {name: [sample.seconds for sample in found] for name, found in samples.items()}
    medians = {name: statistics.median(found) for name, found in times.items()}
    ours, theirs = (contestant.name for contestant in pair)
    pairs = [mine / peer for mine, peer in zip(times[ours], times[theirs], strict=True)]
    ratio = medians[ours] / medians[theirs]
    return {
        "case": case.name,
        "ranks": case.ranks,
        "seconds": times,
        "median_s": medians,
        "median_moments_s": {name: _median_moments(found) for name, found in samples.items()},
        "ratio": ratio,
        "paired_ratios": {"min": min(pairs), "max": max(pairs)},
        "target": case.target,
        "met": None if case.target is None else ratio <= case.target,
    }


def _median_moments(samples: list[Sample]) -> dict[str, float]:
    names = samples[0].moments
    return {name: statistics.median(sample.moments[name] for sample in samples) for name in names}


def render_table(rows: list[dict[str, object]]) -> str:
    """Return the results as a Markdown table."""
    lines = [
        "| | ranks | windlass | torchrun | ratio | pairs | target |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        medians, pairs = row["median_s"], row["paired_ratios"]
        target = (
            f"<= {row['target']:.2f}x: {'met' if row['met'] else 'missed'}" if row["target"] else ""
        )
        lines.append(
            f"| {row['case']} | {row['ranks']} | {medians['windlass']:.2f} s | {medians['torchrun']:.2f} s "
            f"| {row['ratio']:.2f}x | {pairs['min']:.2f}-{pairs['max']:.2f}x | {target} |"
        )
    return "\n".join(lines)


def describe_machine() -> dict[str, object]:
    from importlib.metadata import version

    return {
        "python": platform.python_version(),
        "torch": version("torch"),
        "cores": len(os.sched_getaffinity(0)),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--repeats", type=int, default=5, help="measured runs after a warm-up (default: 5)"
    )
    parser.add_argument(
        "--only", default="", help="cases (default: cold,cold-imports,re-run,restart)"
    )
    parser.add_argument("--ranks", default="2,8", help="numbers of ranks (default: 2,8)")
    parser.add_argument(
        "--windlass", type=Path, default=BIN / "windlass", help="windlass program to measure"
    )
    parser.add_argument("--json", type=Path, help="write all measurements to this file")
    options = parser.parse_args()

    home = tempfile.mkdtemp(prefix="windlass-bench-")
    pair = (
        Contestant("windlass", windlass_command(options.windlass), {"WINDLASS_HOME": home}),
        # with gloo, torchrun 2.13 restarts only if ranks create their own store
        Contestant(
            "torchrun", torchrun_command, restart_env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        ),
    )
    cases = make_cases(
        [int(num) for num in options.ranks.split(",")],
        options.only.split(",") if options.only else [],
    )
    if not cases:
        parser.error(f"--only: unknown case {options.only}")
    before = describe_machine()
    try:
        rows = [run_case(case, pair, options.repeats) for case in cases]
    finally:
        shutil.rmtree(home, ignore_errors=True)
    after = describe_machine()
    if options.json:
        report = {
            "machine": before,
            "load_1min_after": after["load_1min"],
            "repeats": options.repeats,
            "cases": rows,
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(render_table(rows))


if __name__ == "__main__":
    main()
