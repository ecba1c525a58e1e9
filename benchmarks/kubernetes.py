"""Compare a start and a restart on Kubernetes with its peers, interleaved, as ratios of medians.

    python benchmarks/kubernetes.py --image IMAGE [--runs 5] [--namespace NAME] [--only floor,restart]
    python benchmarks/kubernetes.py --image IMAGE --profile [--engine trainjob]

Each contestant uses two pods on two nodes, with the image present. `--profile` shows where Windlass spends
its own time.

The clock of a start begins just before the exec of one command: `windlass run`, or `kubectl apply -f -` with
an existing manifest. It stops when the slowest rank has finished its first all-reduce. For the floor, an
Indexed Job, it stops when the slower pod has imported torch. The clock of a restart runs from SIGKILL of one
rank until every rank steps again.

Times are the pods' own timestamps, so the clocks of the nodes and this machine must agree. On the testbed
they share one clock. Each contestant is deleted, and has disappeared, before the next one starts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kubernetes_contestants import (
    KUBERNETES,
    Contestant,
    Sample,
    Setup,
    make_contestants,
    make_project,
    measure_restart,
    name_ours,
)
from kubernetes_place import open_place

from windlass.errors import WindlassError
from windlass.kube.client.api import Api, connect

RESTART = "restart"
RESTART_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Windlass on one engine against a peer. `ratio` is the target: the maximum share of the peer's time."""

    name: str
    peer: str
    ratio: float
    engine: str = KUBERNETES


COMPARISONS = {
    "statefulset": Comparison(name="StatefulSet + torchrun", peer="statefulset", ratio=0.5),
    "trainjob": Comparison(name="TrainJob + torchrun", peer="trainjob", ratio=0.7),
    "floor": Comparison(name="Indexed Job, `import torch` only", peer="floor", ratio=1.25),
    "trainjob-engine": Comparison(
        name="`-e trainjob` against TrainJob + torchrun",
        peer="trainjob",
        ratio=0.8,
        engine="trainjob",
    ),
    "pytorchjob-engine": Comparison(
        name="`-e pytorchjob` against PyTorchJob + torchrun",
        peer="pytorchjob",
        ratio=0.2,
        engine="pytorchjob",
    ),
}
KEYS = (*COMPARISONS, RESTART)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the table."""

    key: str
    ours_s: list[float]  # empty if the engine is not installed
    peer_s: list[float] | None  # None if the peer is not installed, or the target is in seconds

    @property
    def median_s(self) -> float | None:
        return statistics.median(self.ours_s) if self.ours_s else None

    @property
    def ratio(self) -> float | None:
        if self.median_s is None or not self.peer_s:
            return None
        return self.median_s / statistics.median(self.peer_s)

    @property
    def pairs(self) -> list[float]:
        peer = self.peer_s if self.ours_s and self.peer_s else []
        return [mine / theirs for mine, theirs in zip(self.ours_s, peer, strict=bool(peer))]

    @property
    def is_met(self) -> bool | None:
        if self.key == RESTART:
            return self.median_s is not None and self.median_s <= RESTART_S
        return None if self.ratio is None else self.ratio <= COMPARISONS[self.key].ratio


# -- running -------------------------------------------------------------------------------------


def run_all(
    setup: Setup, contestants: Mapping[str, Contestant], runs: int
) -> dict[str, list[Sample]]:
    """Run a warm-up of each contestant, then all in turn. A different one goes first in each round."""
    samples: dict[str, list[Sample]] = {key: [] for key in contestants}
    keys = list(contestants)
    for number in range(runs + 1):
        turn = number % len(keys)
        for key in (*keys[turn:], *keys[:turn]):
            contestant = contestants[key]
            sample = contestant.measure(setup)
            if number:
                samples[key].append(sample)
            _log(f"{contestant.name} {sample.seconds:.3f} s{'' if number else ' (warm-up)'}")
    return samples


def make_rows(chosen: Iterable[str], samples: Mapping[str, list[Sample]]) -> list[Row]:
    """Return one row per comparison. `samples` has a key for each contestant that is installed."""

    def seconds(name: str) -> list[float] | None:
        return [sample.seconds for sample in samples[name]] if name in samples else None

    rows = []
    for key in chosen:
        if key == RESTART:
            rows.append(Row(key=key, ours_s=seconds(RESTART) or [], peer_s=None))
        else:
            ours = seconds(name_ours(COMPARISONS[key].engine)) or []
            rows.append(Row(key=key, ours_s=ours, peer_s=seconds(COMPARISONS[key].peer)))
    return rows


# -- showing -------------------------------------------------------------------------------------


def render_table(rows: Iterable[Row]) -> str:
    """Return the results as a Markdown table."""
    lines = [
        "| against | Windlass | baseline | ratio | pairs | target |",
        "|---|--:|--:|--:|--:|---|",
    ]
    return "\n".join([*lines, *(_render_row(row) for row in rows)])


def _render_row(row: Row) -> str:
    if row.key == RESTART:
        spread = f"{min(row.ours_s):.2f}-{max(row.ours_s):.2f} s"
        ours = f"| SIGKILL of a rank, all step again | {row.median_s:.2f} s "
        return f"{ours}| | | {spread} | <= {RESTART_S:g} s: {_verdict(row)} |"
    comparison = COMPARISONS[row.key]
    target = f"<= {comparison.ratio:.2f}x"
    ours = "not installed" if row.median_s is None else f"{row.median_s:.2f} s"
    if row.peer_s is None:
        return f"| {comparison.name} | {ours} | not installed | | | {target} |"
    peer = f"{statistics.median(row.peer_s):.2f} s"
    if row.ratio is None:
        return f"| {comparison.name} | {ours} | {peer} | | | {target} |"
    pairs = f"{min(row.pairs):.2f}-{max(row.pairs):.2f}x"
    ratio = f"{row.ratio:.2f}x"
    return (
        f"| {comparison.name} | {ours} | {peer} | {ratio} | {pairs} | {target}: {_verdict(row)} |"
    )


def _verdict(row: Row) -> str:
    return "met" if row.is_met else "missed"


def describe(api: Api) -> dict[str, Any]:
    """Describe the machine and the cluster."""
    return {
        "kubernetes": api.request("GET", "/version")["gitVersion"],
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def render_json(
    about: Mapping[str, Any], rows: Iterable[Row], samples: Mapping[str, list[Sample]]
) -> str:
    table = [
        {**asdict(row), "median_s": row.median_s, "ratio": row.ratio, "is_met": row.is_met}
        for row in rows
    ]
    found = {name: [asdict(sample) for sample in each] for name, each in samples.items()}
    return json.dumps({"about": about, "rows": table, "samples": found}, indent=1) + "\n"


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# -- the command ---------------------------------------------------------------------------------


def measure(setup: Setup, chosen: Sequence[str], runs: int) -> tuple[list[Row], dict[str, Any]]:
    available = make_contestants(setup)
    compared = [COMPARISONS[key] for key in chosen if key != RESTART]
    wanted = dict.fromkeys(name for one in compared for name in (name_ours(one.engine), one.peer))
    # a contestant in several comparisons is measured once per round
    contestants = {name: found for name in wanted if (found := available[name]) is not None}
    if RESTART in chosen:
        contestants[RESTART] = Contestant(name=RESTART, measure=measure_restart)
    samples = run_all(setup, contestants, runs)
    return make_rows(chosen, samples), samples


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--image", required=True, help="image with Python and torch, present on the nodes"
    )
    parser.add_argument(
        "--runs", type=int, default=5, help="measured runs after a warm-up (default: 5)"
    )
    parser.add_argument(
        "--namespace",
        default="windlass-bench",
        help="an empty or new namespace (default: windlass-bench)",
    )
    parser.add_argument(
        "--context", default="", help="context of the kubeconfig (default: the current one)"
    )
    parser.add_argument("--procs", type=int, default=1, help="ranks per pod (default: 1)")
    parser.add_argument(
        "--only", default=",".join(KEYS), help=f"comparisons to run (default: {','.join(KEYS)})"
    )
    parser.add_argument(
        "--profile", action="store_true", help="show where Windlass spends its own time"
    )
    parser.add_argument(
        "--engine", default=KUBERNETES, help="engine to profile (default: kubernetes)"
    )
    parser.add_argument(
        "--windlass", type=Path, default=Path(sys.executable).with_name("windlass"),
        help="windlass program to measure",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, help="write all measurements to this file")
    options = parser.parse_args()
    options.only = options.only.split(",")
    if unknown := set(options.only) - set(KEYS):
        parser.error(f"--only: unknown comparison {', '.join(sorted(unknown))}")
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    if shutil.which("kubectl") is None:
        parser.error("kubectl is not on the PATH, but most contestants need it to start")
    return options


def main() -> None:
    options = read_options()
    api = connect(context=options.context)
    with (
        tempfile.TemporaryDirectory(prefix="bench-project-") as project,
        tempfile.TemporaryDirectory(prefix="bench-home-") as home,
        open_place(api, options.namespace) as place,
    ):
        make_project(Path(project))
        setup = Setup(
            place=place, image=options.image, nodes=2, procs=options.procs,
            windlass=options.windlass.absolute(), project=Path(project), home=Path(home),
        )  # fmt: skip
        if place.count_nodes() < setup.nodes:
            raise SystemExit(f"kubernetes: the cluster needs {setup.nodes} schedulable nodes")
        about = describe(api)
        if options.profile:
            from kubernetes_profile import profile

            tables, found = profile(setup, options.runs, engine=options.engine)
            if options.json:
                options.json.write_text(json.dumps({"about": about, **found}, indent=1) + "\n")
            print(tables)
            return
        rows, samples = measure(setup, options.only, options.runs)
    about["load_1min_after"] = describe(api)["load_1min"]
    if options.json:
        options.json.write_text(render_json(about, rows, samples))
    print(render_table(rows))


if __name__ == "__main__":
    try:
        main()
    except WindlassError as error:  # has a hint of its own
        sys.exit(f"kubernetes: {error}")
