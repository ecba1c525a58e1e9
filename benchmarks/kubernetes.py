"""A start and a restart on Kubernetes against its peers: interleaved in one run, as ratios of medians.

    python benchmarks/kubernetes.py --image IMAGE [--runs 5] [--namespace NAME] [--only floor,restart]
    python benchmarks/kubernetes.py --image IMAGE --profile        where our own time goes

Two pods on two nodes, the image present. The clock of a start runs from the moment before the exec of the
one command (`windlass run`, or `kubectl apply -f -` of a manifest made before) until the slowest rank has
its first all-reduce behind it; for the floor, an Indexed Job, until the slower pod has imported torch. The
clock of a restart runs from SIGKILL of one rank until every rank steps again. Times are the pods' own
stamps, so the nodes' clocks and this machine's must agree; on the testbed they are one. Each contestant is
deleted, and seen to be gone, before the next one starts.
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
    Contestant,
    Sample,
    Setup,
    make_contestants,
    make_project,
    measure_restart,
)
from kubernetes_place import opened

from windlass.errors import WindlassError
from windlass.kube.api import Api, connect

OURS, RESTART = "windlass", "restart"
# what ours may take at most: as a multiple of the peer's time, or in seconds
RATIOS = {"statefulset": 0.5, "trainjob": 0.7, "floor": 1.25}
RESTART_S = 1.0
NAMES = {
    "statefulset": "StatefulSet + torchrun",
    "trainjob": "TrainJob + torchrun",
    "floor": "Indexed Job, `import torch` only",
    RESTART: "SIGKILL of a rank, all step again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table; no peer: it is not installed, or the target is in seconds."""

    key: str
    ours_s: list[float]
    peer_s: list[float] | None

    @property
    def median_s(self) -> float:
        return statistics.median(self.ours_s)

    @property
    def ratio(self) -> float | None:
        return self.median_s / statistics.median(self.peer_s) if self.peer_s else None

    @property
    def pairs(self) -> list[float]:
        peer = self.peer_s or []
        return [mine / theirs for mine, theirs in zip(self.ours_s, peer, strict=True)]

    @property
    def is_met(self) -> bool | None:
        if self.key == RESTART:
            return self.median_s <= RESTART_S
        return None if self.ratio is None else self.ratio <= RATIOS[self.key]


# -- running -------------------------------------------------------------------------------------


def run_all(setup: Setup, contestants: Sequence[Contestant], runs: int) -> dict[str, list[Sample]]:
    """A warm-up of each, then all in turn; who goes first changes every time."""
    samples: dict[str, list[Sample]] = {who.name: [] for who in contestants}
    for number in range(runs + 1):
        turn = number % len(contestants)
        for who in (*contestants[turn:], *contestants[:turn]):
            sample = who.measure(setup)
            if number:
                samples[who.name].append(sample)
            _say(f"{who.name} {sample.seconds:.3f} s{'' if number else ' (warm-up)'}")
    return samples


def make_rows(
    chosen: Iterable[str],
    found: Mapping[str, Contestant | None],
    samples: Mapping[str, list[Sample]],
) -> list[Row]:
    """What was measured, one row a comparison."""

    def seconds(name: str) -> list[float]:
        return [sample.seconds for sample in samples[name]]

    rows = []
    for key in chosen:
        if key == RESTART:
            rows.append(Row(key=key, ours_s=seconds(RESTART), peer_s=None))
        else:
            peer = found[key]
            theirs = None if peer is None else seconds(peer.name)
            rows.append(Row(key=key, ours_s=seconds(OURS), peer_s=theirs))
    return rows


# -- showing -------------------------------------------------------------------------------------


def render_table(rows: Iterable[Row]) -> str:
    """The results as a table in Markdown."""
    lines = [
        "| against | windlass | peer | ratio | pairs | target |",
        "|---|--:|--:|--:|--:|---|",
    ]
    return "\n".join([*lines, *(_render_row(row) for row in rows)])


def _render_row(row: Row) -> str:
    ours = f"| {NAMES[row.key]} | {row.median_s:.2f} s "
    if row.key == RESTART:
        spread = f"{min(row.ours_s):.2f}-{max(row.ours_s):.2f} s"
        return f"{ours}| | | {spread} | <= {RESTART_S:g} s: {_verdict(row)} |"
    target = f"<= {RATIOS[row.key]:.2f}x"
    if row.peer_s is None:
        return f"{ours}| not installed | | | {target} |"
    peer = f"{statistics.median(row.peer_s):.2f} s"
    pairs = f"{min(row.pairs):.2f}-{max(row.pairs):.2f}x"
    return f"{ours}| {peer} | {row.ratio:.2f}x | {pairs} | {target}: {_verdict(row)} |"


def _verdict(row: Row) -> str:
    return "met" if row.is_met else "missed"


def describe(api: Api) -> dict[str, Any]:
    """Where this was measured."""
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


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# -- the command ---------------------------------------------------------------------------------


def measure(setup: Setup, chosen: Sequence[str], runs: int) -> tuple[list[Row], dict[str, Any]]:
    found = make_contestants(setup)
    wanted = [found[OURS]] if set(chosen) - {RESTART} else []
    wanted += [found[key] for key in chosen if key != RESTART]
    contestants = [who for who in wanted if who is not None]
    if RESTART in chosen:
        contestants.append(Contestant(name=RESTART, measure=measure_restart))
    samples = run_all(setup, contestants, runs)
    return make_rows(chosen, found, samples), samples


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--image", required=True, help="has Python and torch; present on the nodes")
    parser.add_argument("--runs", type=int, default=5, help="measured runs, after a warm-up")
    parser.add_argument("--namespace", default="windlass-bench", help="empty, or not there yet")
    parser.add_argument("--context", default="", help="of the kubeconfig")
    parser.add_argument("--procs", type=int, default=1, help="ranks a pod")
    parser.add_argument("--only", default=",".join(NAMES), help=f"some of: {','.join(NAMES)}")
    parser.add_argument("--profile", action="store_true", help="where our own time goes")
    parser.add_argument(
        "--windlass", type=Path, default=Path(sys.executable).with_name("windlass"),
        help="the program to time",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    options = parser.parse_args()
    options.only = options.only.split(",")
    if unknown := set(options.only) - set(NAMES):
        parser.error(f"--only: there is no {', '.join(sorted(unknown))}")
    if options.runs < 1:
        parser.error("--runs: at least 1")
    if shutil.which("kubectl") is None:
        parser.error("kubectl is not on the PATH, and most contestants are started with it")
    return options


def main() -> None:
    options = read_options()
    api = connect(context=options.context)
    with (
        tempfile.TemporaryDirectory(prefix="bench-project-") as project,
        tempfile.TemporaryDirectory(prefix="bench-home-") as home,
        opened(api, options.namespace) as place,
    ):
        make_project(Path(project))
        setup = Setup(
            place=place, image=options.image, nodes=2, procs=options.procs,
            windlass=options.windlass.absolute(), project=Path(project), home=Path(home),
        )  # fmt: skip
        if place.count_nodes() < setup.nodes:
            raise SystemExit(f"kubernetes: {setup.nodes} nodes are needed that take pods")
        about = describe(api)
        if options.profile:
            from kubernetes_profile import profile

            tables, found = profile(setup, options.runs)
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
    except WindlassError as trouble:  # says itself what to do
        sys.exit(f"kubernetes: {trouble}")
