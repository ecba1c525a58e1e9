"""Measure the overhead of TorchTrainer's steps, and its recovery from a killed rank, as ratios.

    python benchmarks/train_overhead.py [--only step,recovery] [--blocks 30] [--repeats 5] [--json FILE]

step: Compare TorchTrainer's optimizer step with a hand-written loop that does the same. Blocks of both take
turns in one process.

recovery: Measure from SIGKILL of a rank until every rank has made the next optimizer step, from a checkpoint
on disk. TorchTrainer under `windlass run --restarts` is compared with Hugging Face's Trainer under torchrun
--max-restarts. TorchTrainer under torchrun runs as well, to separate the library's share from the launcher's.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from launch import BIN, SCRIPTS, Contestant, Sample, describe_machine, kill_last_rank, launched

STEP_TARGET, RECOVERY_TARGET = 1.02, 0.2
OURS, OURS_IN_TORCHRUN, THEIRS = (
    "TorchTrainer, windlass run",
    "TorchTrainer, torchrun",
    "HF Trainer, torchrun",
)


def windlass_args(ranks: int, restarts: int) -> list[str]:
    where = ["--nodes", "1", "--procs", str(ranks), "--restarts", str(restarts)]
    return [str(BIN / "windlass"), "run", *where]


def torchrun_args(ranks: int, restarts: int) -> list[str]:
    where = ["--nproc-per-node", str(ranks), "--standalone", "--max-restarts", str(restarts)]
    return [str(BIN / "torchrun"), *where]


# -- steps --------------------------------------------------------------------------------------------


def measure_steps(ranks: int, *, block_steps: int, blocks: int, home: str) -> dict[str, object]:
    """Return the median step on both sides, and the median ratio of neighboring blocks."""

    def command(script: Path, ranks: int, restarts: int) -> list[str]:
        tail = [str(script), "--", str(block_steps), str(blocks)]
        return [*windlass_args(ranks, restarts), *tail]

    contestant = Contestant("steps", command, {"WINDLASS_HOME": home})
    with launched(contestant, "train_step_pairs.py", ranks) as run:
        run.wait_for(["pairs.json"])
        pairs = json.loads((run.out / "pairs.json").read_text())
    ours = statistics.median(mine for mine, _ in pairs) / block_steps
    theirs = statistics.median(peer for _, peer in pairs) / block_steps
    ratio = statistics.median(mine / peer for mine, peer in pairs)
    _log(f"step, {ranks} ranks: {ours * 1e3:.3f} ms, by hand {theirs * 1e3:.3f} ms: {ratio:.3f}x")
    return {
        "case": "step",
        "ranks": ranks,
        "median_s": {"TorchTrainer": ours, "by hand": theirs},
        "ratio": ratio,
        "target": STEP_TARGET,
        "met": ratio <= STEP_TARGET,
        "pairs": pairs,
    }


# -- recovery -----------------------------------------------------------------------------------------


def make_contestants(home: str) -> list[Contestant]:
    ours, theirs = SCRIPTS / "train_restarted.py", SCRIPTS / "train_restarted_hf.py"
    # with gloo, torchrun 2.13 restarts only if ranks create their own store
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    def with_windlass(_script: Path, ranks: int, restarts: int) -> list[str]:
        return [*windlass_args(ranks, restarts), str(ours)]

    def with_torchrun(_script: Path, ranks: int, restarts: int) -> list[str]:
        return [*torchrun_args(ranks, restarts), str(ours)]

    def hf_with_torchrun(_script: Path, ranks: int, restarts: int) -> list[str]:
        return [*torchrun_args(ranks, restarts), str(theirs)]

    return [
        Contestant(OURS, with_windlass, {"WINDLASS_HOME": home}),
        Contestant(OURS_IN_TORCHRUN, with_torchrun, own_store),
        Contestant(THEIRS, hf_with_torchrun, own_store),
    ]


def measure_recovery(contestant: Contestant, ranks: int) -> Sample:
    """Measure from SIGKILL of the last rank to the slowest rank's next optimizer step."""
    with launched(contestant, "", ranks, restarts=1) as run:
        killed_s, stamps = kill_last_rank(run, ranks)
    if any(int(step) < 6 for _, _, step in stamps):
        raise SystemExit(f"{contestant.name} did not resume from its checkpoint: {stamps}")
    return Sample(max(float(at_s) for _, at_s, _ in stamps) - killed_s)


def compare_recovery(ranks: int, *, repeats: int, home: str) -> dict[str, object]:
    contestants = make_contestants(home)
    times: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    for repeat in range(repeats + 1):
        for contestant in contestants if repeat % 2 else contestants[::-1]:
            seconds = measure_recovery(contestant, ranks).seconds
            if repeat:
                times[contestant.name].append(seconds)
            _log(f"recovery: {contestant.name} {seconds:.3f} s{'' if repeat else ' (warm-up)'}")
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    ratio = medians[OURS] / medians[THEIRS]
    return {
        "case": "recovery",
        "ranks": ranks,
        "seconds": times,
        "median_s": medians,
        "ratio": ratio,
        "target": RECOVERY_TARGET,
        "met": ratio <= RECOVERY_TARGET,
    }


# -- the command --------------------------------------------------------------------------------------


def render_table(rows: list[dict[str, object]]) -> str:
    """Return the results as a Markdown table."""
    lines = ["| | ranks | medians | ratio | target |", "|---|--:|---|--:|---|"]
    for row in rows:
        medians = ", ".join(f"{name}: {_show(value)}" for name, value in row["median_s"].items())
        target = f"<= {row['target']:.2f}x: {'met' if row['met'] else 'missed'}"
        lines.append(
            f"| {row['case']} | {row['ranks']} | {medians} | {row['ratio']:.3f}x | {target} |"
        )
    return "\n".join(lines)


def _show(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1e3:.3f} ms"


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="step,recovery", help="cases (default: step,recovery)")
    parser.add_argument("--ranks", default="1,2", help="numbers of ranks for step (default: 1,2)")
    parser.add_argument("--block-steps", type=int, default=20, help="steps per block (default: 20)")
    parser.add_argument(
        "--blocks", type=int, default=40, help="blocks after a warm-up (default: 40)"
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="recoveries per contestant (default: 5)"
    )
    parser.add_argument("--json", type=Path, help="write all measurements to this file")
    options = parser.parse_args()
    before = describe_machine()
    home = tempfile.mkdtemp(prefix="windlass-bench-")
    rows: list[dict[str, object]] = []
    try:
        if "step" in options.only:
            for ranks in (int(number) for number in options.ranks.split(",")):
                settings = {"block_steps": options.block_steps, "blocks": options.blocks}
                rows.append(measure_steps(ranks, home=home, **settings))
        if "recovery" in options.only:
            rows.append(compare_recovery(2, repeats=options.repeats, home=home))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    if options.json:
        report = {"before": before, "after": describe_machine(), "rows": rows}
        options.json.write_text(json.dumps(report, indent=1))
    print(render_table(rows))


if __name__ == "__main__":
    main()
