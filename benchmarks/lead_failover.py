"""Measure recovery from the loss of node 0's pod: Windlass against JobSet with torchrun.

    python benchmarks/lead_failover.py --image IMAGE [--rounds 5]

There are two pods with one rank each, using gloo. Once both ranks step, node 0's pod is deleted by force. The
clock stops when the slowest rank of the next attempt has finished its first all-reduce. Contestants take
turns. Windlass replaces one pod and keeps the other. A JobSet's failure policy recreates both.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kubernetes_place import LIMIT_S, Place, Stamp, open_place, read_stamps

from windlass.kube.client.api import connect
from windlass.kube.objects.fields import name_of
from windlass.kube.objects.kinds import PODS, ObjectKind
from windlass.waiting import wait_until

JOB_SETS = ObjectKind("jobset.x-k8s.io/v1alpha2", "jobsets", "JobSet")
NAME = "failover"
SCRIPT = """
import json, os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
for step in range(1000):
    value = torch.ones(1)
    dist.all_reduce(value)
    assert value.item() == size
    if step == 0:
        print("BENCH " + json.dumps({"rank": rank, "at": time.time()}), flush=True)
    time.sleep(0.05)
"""


def make_job_set(image: str) -> dict[str, Any]:
    """Return a JobSet of two pods with torchrun, restarted as a whole when a pod is lost."""
    run = (
        'printf "%s" "$SCRIPT" > /tmp/train.py && exec torchrun --nnodes 2 --nproc-per-node 1'
        f" --node-rank $JOB_COMPLETION_INDEX --master-addr {NAME}-node-0-0.{NAME}"
        " --master-port 29500 /tmp/train.py"
    )
    container = {
        "name": "torch",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["bash", "-c", run],
        "env": [{"name": "SCRIPT", "value": SCRIPT}],
    }
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
    job = {
        "completionMode": "Indexed",
        "parallelism": 2,
        "completions": 2,
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": NAME},
        "spec": {
            "failurePolicy": {"maxRestarts": 3},
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": job}}],
        },
    }


def measure_job_set(place: Place, image: str, _folder: Path) -> float:
    place.api.create(JOB_SETS, make_job_set(image))
    first = place.wait_stamps(2, contestant="jobset")
    killed_s = lose_first_pod(place)
    last_s = wait_for_steps(lambda: read_pod_stamps(place), first, killed_s, "jobset")
    place.api.delete(JOB_SETS, NAME)
    return last_s - killed_s


def measure_windlass(place: Place, image: str, folder: Path) -> float:
    script, log = folder / "train.py", folder / f"log-{time.time()}"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "windlass.cli.main", "run", str(script)]
    command += ["-e", "kubernetes", "--nodes", "2", "--procs", "1", "--image", image]
    command += ["--namespace", place.namespace]
    env = {**os.environ, "WINDLASS_HOME": str(folder / "home")}
    with log.open("wb") as output:
        running = subprocess.Popen(
            command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            read = lambda: read_stamps(log.read_text(errors="replace"))  # noqa: E731
            if not wait_until(lambda: len(read()) >= 2, timeout_s=LIMIT_S, every_s=0.1):
                raise SystemExit(f"windlass did not start:\n{log.read_text()}")
            first = read()
            killed_s = lose_first_pod(place)
            last_s = wait_for_steps(read, first, killed_s, "windlass")
        finally:
            running.terminate()
            running.wait(60)
    return last_s - killed_s


def lose_first_pod(place: Place) -> float:
    """Delete the pod with index 0 by force, and return when."""
    label = "batch.kubernetes.io/job-completion-index"
    pods = [pod for pod in place.pods() if pod["metadata"]["labels"].get(label) == "0"]
    if len(pods) != 1:
        raise SystemExit(f"expected one pod with index 0, found {[name_of(pod) for pod in pods]}")
    killed_s = time.time()
    place.api.delete(PODS, name_of(pods[0]), grace_s=0.0)
    return killed_s


def read_pod_stamps(place: Place) -> list[Stamp]:
    return [stamp for pod in place.pods() for stamp in place.read_pod(pod)]


def wait_for_steps(
    read: Callable[[], list[Stamp]], first: list[Stamp], killed_s: float, contestant: str
) -> float:
    """Return when the slowest rank of the next attempt made its first step."""
    before = {json.dumps(stamp) for stamp in first}
    new: dict[float, float] = {}

    def is_complete() -> bool:
        for stamp in read():
            if json.dumps(stamp) not in before and stamp["at"] > killed_s:
                new[stamp["rank"]] = stamp["at"]
        return len(new) == 2

    if not wait_until(is_complete, timeout_s=LIMIT_S, every_s=0.2):
        raise SystemExit(
            f"{contestant}: only ranks {sorted(new)} stepped again within {LIMIT_S:g} s"
        )
    return max(new.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--image", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--namespace", default="windlass-failover")
    options = parser.parse_args()
    contestants = {"windlass": measure_windlass, "jobset": measure_job_set}
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for name in list(contestants)[:: -1 if number % 2 else 1]:
                with open_place(connect(), f"{options.namespace}-{number}-{name}") as place:
                    seconds = contestants[name](place, options.image, Path(folder))
                taken[name].append(seconds)
                print(f"{name}: {seconds:.2f} s", flush=True)
    ours, peer = (statistics.median(taken[name]) for name in contestants)
    print(f"windlass {ours:.2f} s, jobset {peer:.2f} s, ratio {ours / peer:.2f}x")


if __name__ == "__main__":
    main()
