"""Compare Ray on Windlass nodes with Ray's own ways, interleaved, as ratios of medians.

    python benchmarks/ray_clusters.py [--runs 5] [--only warm,pods] [--image IMAGE] [--namespace NAME]

warm: Call an edited function on a live cluster of this machine, from the call to its first line. The peer is
`ray job submit` of an edited script to the same cluster, from its exec to the script's first line.

pods: Run a program that uses a head and a worker in two pods. Its time ends with the result of a task that
only the worker can run. The peer is a RayCluster created with `kubectl apply`. As soon as its head is Ready,
`kubectl exec` starts a driver there. The case needs a cluster with KubeRay and the image, and a namespace
that nothing else uses.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

import windlass as wl

IMAGE = "rayproject/ray:2.32.0-py311"
LIMIT_S = 600
WARM_S, PODS_RATIO = 0.3, 0.35
NAME = "bench-ray"
EDITED = "import os, time\ndef begin():\n    began_s = time.time()\n    return began_s, {number}\n"
DRIVER = """
import ray
ray.init(address="auto")
@ray.remote(num_gpus=1)
def first():
    return "first task"
print(ray.get(first.remote()))
"""
OURS = """
import windlass as wl
def run():
    import ray
    ray.init(address="auto")
    @ray.remote(num_gpus=1)
    def first():
        return "first task"
    return ray.get(first.remote())
if __name__ == "__main__":
    compute = wl.Compute(name="{name}", memory="4Gi", image="{image}", engine="kubernetes")
    spread = compute.distribute("ray", workers=1, worker_node_options={worker})
    print(wl.fn(run).to(spread)(), flush=True)
"""
WORKER = {"gpus": 1, "memory": "4Gi"}

Measure = Callable[[int], float]  # number of the round -> seconds


# -- an edited function on a live cluster ----------------------------------------------------------


@contextmanager
def warm(folder: Path) -> Iterator[tuple[Measure, Measure]]:
    """Yield Windlass's measurement, and that of `ray job submit` to the same cluster."""
    sys.path.insert(0, str(folder))
    (folder / "edited.py").write_text(EDITED.format(number=0))
    edited = importlib.import_module("edited")
    compute = wl.Compute(name=NAME, engine="local", cpus=1, root=str(folder))
    remote = wl.fn(edited.begin).to(compute).distribute("ray", workers=1)
    variables = wl.fn(_read_variables).to(compute).distribute("ray", workers=1)()

    def call(number: int) -> float:
        (folder / "edited.py").write_text(EDITED.format(number=number))
        start_s = time.time()
        began_s, seen = remote()
        assert seen == number, "the edit did not arrive"
        return began_s - start_s

    def submit_job(number: int) -> float:
        script = folder / "script.py"
        script.write_text(f"import time\nprint('began', time.time(), {number})\n")
        address = _run([*WINDLASS, "port-forward", NAME, "8265", "-e", "local"]).strip()
        ray = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit"]
        env = {**os.environ, **variables, "RAY_ADDRESS": f"http://{address}"}
        start_s = time.time()
        output = _run([*ray, "--", sys.executable, str(script)], env=env)
        [line] = [line for line in output.splitlines() if line.startswith("began")]
        return float(line.split()[1]) - start_s

    try:
        call(1)
        yield call, submit_job
    finally:
        compute.teardown()


def _read_variables() -> dict[str, str]:
    return {name: os.environ[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}


# -- two pods ------------------------------------------------------------------------------------


@contextmanager
def pods(folder: Path, image: str, namespace: str) -> Iterator[tuple[Measure, Measure]]:
    """Yield Windlass's measurement, and that of a RayCluster created with kubectl."""
    env = {**os.environ, "WINDLASS_NAMESPACE": namespace, "WINDLASS_HOME": str(folder / "home")}
    script = folder / "ours.py"
    script.write_text(OURS.format(name=NAME, image=image, worker=WORKER))
    kubectl = ["kubectl", "-n", namespace]

    def ours(_number: int) -> float:
        start_s = time.monotonic()
        assert "first task" in _run([sys.executable, str(script)], env=env)
        took_s = time.monotonic() - start_s
        _run([*WINDLASS, "compute", "rm", NAME, "-e", "kubernetes"], env=env)
        _run([*kubectl, "wait", "--for=delete", "pod", "--all", f"--timeout={LIMIT_S}s"])
        return took_s

    def by_hand(number: int) -> float:
        # a new name each time, because KubeRay takes twice as long for one that was just deleted
        name = f"{NAME}-{number}"
        manifest = yaml.safe_dump(_make_cluster(name, image))
        start_s = time.monotonic()
        _run([*kubectl, "apply", "-f", "-"], given=manifest)
        head = ["-l", "ray.io/node-type=head"]
        for condition in ("create", "condition=Ready"):
            _run([*kubectl, "wait", f"--for={condition}", "pod", *head, f"--timeout={LIMIT_S}s"])
        pod = _run([*kubectl, "get", "pod", *head, "-o", "name"]).strip()
        assert "first task" in _run([*kubectl, "exec", pod, "--", "python3", "-c", DRIVER])
        took_s = time.monotonic() - start_s
        _run([*kubectl, "delete", "raycluster", name])
        _run([*kubectl, "wait", "--for=delete", "pod", "--all", f"--timeout={LIMIT_S}s"])
        return took_s

    yield ours, by_hand


def _make_cluster(name: str, image: str) -> dict[str, object]:
    def make_template(limits: dict[str, str]) -> dict[str, object]:
        container = {"name": "ray", "image": image, "imagePullPolicy": "IfNotPresent"}
        return {"spec": {"containers": [{**container, "resources": {"limits": limits}}]}}

    limits = {"memory": "4Gi"}
    group = {"groupName": "workers", "replicas": 1, "minReplicas": 1, "maxReplicas": 1}
    worker = make_template({**limits, "nvidia.com/gpu": "1"})
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name},
        "spec": {
            "headGroupSpec": {"rayStartParams": {}, "template": make_template(limits)},
            "workerGroupSpecs": [{**group, "rayStartParams": {}, "template": worker}],
        },
    }


# -- measuring -----------------------------------------------------------------------------------

WINDLASS = [sys.executable, "-m", "windlass.cli.main"]


def _run(command: list[str], *, env: dict[str, str] | None = None, given: str = "") -> str:
    done = subprocess.run(
        command, env=env, input=given, capture_output=True, text=True, timeout=LIMIT_S
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:6])}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def measure(case: str, sides: tuple[Measure, Measure], runs: int) -> dict[str, object]:
    """Measure both sides in turns. The order is reversed each time."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(runs):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            times[side].append(sides[side](number + 2))
            name = ("ours", "peer")[side]
            print(f"{case} {number}: {name} {times[side][-1]:.2f} s", file=sys.stderr, flush=True)
    ours_s, peer_s = map(statistics.median, times)
    is_met = ours_s <= WARM_S if case == "warm" else ours_s <= PODS_RATIO * peer_s
    row = {"case": case, "ours_s": ours_s, "peer_s": peer_s, "ratio": ours_s / peer_s}
    print(
        f"{case}: ours {ours_s:.2f} s ({min(times[0]):.2f} to {max(times[0]):.2f}), "
        f"peer {peer_s:.2f} s ({min(times[1]):.2f} to {max(times[1]):.2f}), "
        f"ratio {ours_s / peer_s:.3f}, {'met' if is_met else 'missed'}; load {os.getloadavg()[0]:.0f}",
        flush=True,
    )
    return {**row, "is_met": is_met, "ours": times[0], "peer": times[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="warm,pods")
    parser.add_argument("--image", default=IMAGE)
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--json", dest="file", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "warm" in options.only:
            with warm(folder) as sides:
                rows.append(measure("warm", sides, options.runs))
        if "pods" in options.only:
            with pods(folder, options.image, options.namespace) as sides:
                rows.append(measure("pods", sides, options.runs))
    if options.file:
        options.file.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
