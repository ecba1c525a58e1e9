"""Compare starts, restarts and warm calls of two versions of Windlass, interleaved, as ratios.

    python benchmarks/versions.py --before PYTHON [--pairs 20] [--only cold-2,empty-kept] [--json FILE]

PYTHON belongs to an environment with the earlier version. The later version is the one that runs this
program. Both take turns in every case and the order is reversed every time, so that a slow phase of the
machine affects both. A ratio above 1 means that the later version is slower.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from launch import Contestant, describe_machine, measure_restart, measure_start, windlass_command
from warm_peer import Peer
from warm_setup import Setup, open_all, ours

BEFORE, AFTER = "before", "after"
_NOISE = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One of the two versions."""

    name: str
    python: Path
    folder: Path  # its own folder for state between runs

    @property
    def contestant(self) -> Contestant:
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        program = windlass_command(self.python.parent / "windlass")
        return Contestant(self.name, program, {"WINDLASS_HOME": str(home)})

    def open_warm(self, stack: ExitStack, *, ranks: int, kept: bool) -> Peer:
        """Start a compute of this version."""
        setup = Setup(
            folder=self.folder,
            rounds=1,
            calls=1,
            big_bytes=0,
            pause_s=0.0,
            pythons={},
            torchrun=Path(),
        )
        start = ours(setup, ranks=ranks, kept=kept)
        start = replace(start, name=self.name, command=[str(self.python), *start.command[1:]])
        return open_all(stack, [start])[0]


Pair = tuple[Version, Version]
Samples = dict[str, list[float]]
Measure = Callable[[Pair, int], Samples]


def take_pairs(pair: Pair, num_pairs: int, measure: Callable[[Version], float]) -> Samples:
    """Run a warm-up of both versions, then both in turn."""
    samples: Samples = {version.name: [] for version in pair}
    for number in range(num_pairs + 1):
        for version in pair if number % 2 else pair[::-1]:
            seconds = measure(version)
            if number:
                samples[version.name].append(seconds)
    return samples


def measure_import(pair: Pair, num_pairs: int) -> Samples:
    """Measure `import windlass` in a new process."""

    def one(version: Version) -> float:
        began_s = time.perf_counter()
        subprocess.run([str(version.python), "-c", "import windlass"], check=True)
        return time.perf_counter() - began_s

    return take_pairs(pair, num_pairs, one)


def cold(ranks: int) -> Measure:
    def measure(pair: Pair, num_pairs: int) -> Samples:
        return take_pairs(
            pair, num_pairs, lambda version: measure_start(version.contestant, ranks).seconds
        )

    return measure


def restart(ranks: int) -> Measure:
    def measure(pair: Pair, num_pairs: int) -> Samples:
        return take_pairs(
            pair, num_pairs, lambda version: measure_restart(version.contestant, ranks).seconds
        )

    return measure


def empty(*, kept: bool, calls: int) -> Measure:
    """Return a measurement of consecutive empty calls on two ranks, with both computes running."""

    def measure(pair: Pair, num_pairs: int) -> Samples:
        with ExitStack() as stack:
            peers = {version.name: version.open_warm(stack, ranks=2, kept=kept) for version in pair}

            def one(version: Version) -> float:
                return statistics.median(peers[version.name].ask("empty", num=calls))

            return take_pairs(pair, num_pairs, one)

    return measure


def edit(ranks: int) -> Measure:
    """Return a measurement from an edit to the slowest rank's first all-reduce, in fresh ranks."""

    def measure(pair: Pair, num_pairs: int) -> Samples:
        with ExitStack() as stack:
            peers = {
                version.name: version.open_warm(stack, ranks=ranks, kept=False) for version in pair
            }
            numbers = iter(range(100, 1000))

            def one(version: Version) -> float:
                time.sleep(1.0)  # a user's pause, in which Windlass forks spare ranks
                return peers[version.name].edit("first_all_reduce", next(numbers))

            return take_pairs(pair, num_pairs, one)

    return measure


CASES: dict[str, Measure] = {
    "import": measure_import,
    "cold-1": cold(1),
    "cold-2": cold(2),
    "cold-8": cold(8),
    "restart-2": restart(2),
    "restart-8": restart(8),
    "empty-kept": empty(kept=True, calls=300),
    "empty-fresh": empty(kept=False, calls=10),
    "edit-2": edit(2),
    "edit-8": edit(8),
}


def make_row(case: str, samples: Samples) -> dict[str, object]:
    """Return medians, and the median of the pairs' ratios, which a slow phase changes least."""
    ratios = [mine / old for mine, old in zip(samples[AFTER], samples[BEFORE], strict=True)]
    return {
        "case": case,
        "median_s": {name: statistics.median(seconds) for name, seconds in samples.items()},
        "ratio": statistics.median(ratios),
        "is_slower": statistics.median(ratios) > _NOISE,
        "seconds": samples,
    }


def render_table(rows: list[dict[str, object]]) -> str:
    lines = ["| | before | after | after / before |", "|---|--:|--:|--:|"]
    for row in rows:
        medians = row["median_s"]
        assert isinstance(medians, dict)
        old, new = (f"{1e3 * medians[name]:.4g} ms" for name in (BEFORE, AFTER))
        slower = " (slower)" if row["is_slower"] else ""
        lines.append(f"| {row['case']} | {old} | {new} | {row['ratio']:.3f}x{slower} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--before", type=Path, required=True, help="Python of the earlier version")
    parser.add_argument(
        "--pairs", type=int, default=20, help="measured pairs after a warm-up (default: 20)"
    )
    parser.add_argument("--only", default="", help=f"cases (default: {','.join(CASES)})")
    parser.add_argument("--json", type=Path, help="write all measurements to this file")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else list(CASES)
    if unknown := [name for name in wanted if name not in CASES]:
        parser.error(f"--only: unknown case {','.join(unknown)}")
    folder = Path(tempfile.mkdtemp(prefix="windlass-versions-"))
    versions = []
    for name, python in ((BEFORE, options.before), (AFTER, Path(sys.executable))):
        (folder / name).mkdir()
        versions.append(Version(name=name, python=python, folder=folder / name))
    rows = []
    try:
        for case in wanted:
            rows.append(make_row(case, CASES[case]((versions[0], versions[1]), options.pairs)))
            print(render_table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        options.json.write_text(json.dumps({"machine": describe_machine(), "rows": rows}, indent=1))
    print(render_table(rows))


if __name__ == "__main__":
    main()
