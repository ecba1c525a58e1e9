"""Measure the time and memory of `windlass status`, `why`, `ls` and `logs` on a job with many pods.

    python benchmarks/many_pods.py --image IMAGE --pods 1000 --toleration KEY --node-selector type=kwok

The same run measures `kubectl get pods -o json` of the same job, as the time of the cluster alone.

The pods may run on fake nodes (KWOK). They then end immediately, and no kubelet serves their logs. There are
two jobs: one has ended, and one waits because all nodes are too small. Each command is a new process with an
empty home. The table has medians of `--repeats` runs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

WINDLASS = (sys.executable, "-m", "windlass.cli.main")
VERBS = ("status", "why", "ls", "logs")
KUBECTL = "kubectl get pods"
LIMIT_S, LIMIT_MB = 2.0, 100
START_S = 900.0


class Run(NamedTuple):
    """One command's duration, CPU time and peak memory."""

    took_s: float
    cpu_s: float
    peak_mb: float


def main() -> None:
    args = read_args()
    env = {
        **os.environ,
        "WINDLASS_ENGINE": "kubernetes",
        "WINDLASS_NAMESPACE": args.namespace,
        "WINDLASS_IMAGE": args.image,
    }
    jobs = {
        "ended": submit(args, env),
        "pending": submit(args, env, "--gpus", "4096", "--procs", "1"),
    }
    try:
        for state, ref in jobs.items():
            wait_for(ref, state, args.pods, env)
        found = {state: measure(ref, args, env) for state, ref in jobs.items()}
    finally:
        for ref in jobs.values():
            subprocess.run([*WINDLASS, "cancel", "--now", ref], env=env, check=False)
            job_id = ref.rpartition("/")[2]
            delete = ["kubectl", "delete", "job", job_id, "-n", args.namespace, "--wait=false"]
            subprocess.run(delete, check=False)
    show(found)
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=2))


def read_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", required=True)
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--toleration", default="kwok.x-k8s.io/node")
    parser.add_argument("--node-selector", default="type=kwok")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", help="write the medians to this file")
    return parser.parse_args()


def submit(args: argparse.Namespace, env: dict[str, str], *more: str) -> str:
    place = ("--toleration", args.toleration, "--node-selector", args.node_selector)
    flags = (*place, "--nodes", str(args.pods), "--spread", "none", "--quiet", *more)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "windlass.toml").touch()  # the smallest project
        return subprocess.run(
            [*WINDLASS, "run", "--detach", *flags, "--", "true"],
            env={**env, "WINDLASS_HOME": f"{folder}/home"},
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout.strip()


def wait_for(ref: str, state: str, num_pods: int, env: dict[str, str]) -> None:
    """Wait until all pods exist, and have ended if `state` is "ended"."""
    namespace, job_id = ref.removeprefix("kubernetes://").split("/")
    field = "{.status.succeeded}" if state == "ended" else "{.status.active}"
    ask = ["kubectl", "get", "job", job_id, "-n", namespace, "-o", f"jsonpath={field}"]
    end_s = time.monotonic() + START_S
    while (seen := subprocess.run(ask, env=env, capture_output=True, text=True).stdout) != str(
        num_pods
    ):
        if time.monotonic() > end_s:
            raise SystemExit(f"{ref}: after {START_S:g} s only {seen or 0} of {num_pods} pods")
        time.sleep(2.0)


def measure(ref: str, args: argparse.Namespace, env: dict[str, str]) -> dict[str, Run]:
    found: dict[str, list[Run]] = {command: [] for command in (*VERBS, KUBECTL)}
    label = f"windlass.dev/job={ref.rpartition('/')[2]}"
    pods = (*KUBECTL.split(), "-n", args.namespace, "-l", label, "-o", "json")
    for _ in range(args.repeats):
        found[KUBECTL].append(run_once(pods, env))
        for verb in VERBS:
            arguments = ("ls", "-e", "kubernetes") if verb == "ls" else (verb, ref)
            found[verb].append(run_once((*WINDLASS, *arguments), env))
    return {
        verb: Run(*map(statistics.median, zip(*runs, strict=True))) for verb, runs in found.items()
    }


def run_once(command: tuple[str, ...], env: dict[str, str]) -> Run:
    """Run a command with an empty home, as the only child of a process that measures it."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, __file__, "--measure", *command],
            env={**env, "WINDLASS_HOME": folder},
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return Run(**json.loads(done.stdout))


def run_measured(command: list[str]) -> None:
    started_s = time.monotonic()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    took_s = time.monotonic() - started_s
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = Run(took_s, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
    print(json.dumps(run._asdict()))


def show(found: dict[str, dict[str, Run]]) -> None:
    print(f"| job | verb | time | processor | memory | target: {LIMIT_S:g} s, {LIMIT_MB} MB |")
    print("|---|---|--:|--:|--:|---|")
    for state, runs in found.items():
        for verb, run in runs.items():
            is_met = run.took_s <= LIMIT_S and run.peak_mb <= LIMIT_MB
            verdict = "" if verb == KUBECTL else "met" if is_met else "missed"
            print(
                f"| {state} | {verb} | {run.took_s:.2f} s | {run.cpu_s:.2f} s | {run.peak_mb:.0f} MB "
                f"| {verdict} |"
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        run_measured(sys.argv[2:])
    else:
        main()
