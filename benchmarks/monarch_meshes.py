"""Compare the time from host mesh to first actor call with Monarch's own KubernetesJob and operator.

    python benchmarks/monarch_meshes.py --rounds 5 [--only warm] --image localhost/monarch:testbed

Cold: Create two pods, and wait until an actor on each has answered.

Warm: Start new actors on running hosts. Monarch uses its existing client, because with 0.7.0 a second client
cannot use hosts that already had one. Windlass uses a call in a process that stays (`keep="process"`), which
is equivalent, and a call in a new process, which is the default.

Both sides take turns, in a namespace that the benchmark creates and deletes. Monarch's client runs in a
running controller pod, and its time counts from the first line of its script. The benchmark needs kubectl,
Monarch's operator, and an image with torchmonarch.
"""

from __future__ import annotations

import argparse
import json
import secrets
import statistics
import subprocess
import sys
import time
from pathlib import Path

import windlass as wl

HERE = Path(__file__).parent
THEIRS = """
import json, sys, time
start = time.time()
from kubernetes import client
from monarch.actor import Actor, endpoint
from monarch.job.kubernetes import ImageSpec, KubernetesJob

class Answer(Actor):
    @endpoint
    def give(self):
        return time.time()

namespace, image, name = sys.argv[1:4]
job = KubernetesJob(namespace=namespace)
job.add_mesh(name, 2, image_spec=ImageSpec(image))
hosts = getattr(job.state(cached_path=None), name)

def answer(start):
    procs = hosts.spawn_procs({"gpus": 1})
    procs.spawn("answers", Answer).give.call().get()
    print(json.dumps(time.time() - start), flush=True)
    procs.stop().get()

answer(start)
for _ in sys.stdin:
    answer(time.time())
client.CustomObjectsApi().delete_namespaced_custom_object(
    "monarch.pytorch.org", "v1alpha1", namespace, "monarchmeshes", name)
"""


def answer(mesh):
    """Return the time when an actor on each of Windlass's hosts had responded."""
    from monarch.actor import Actor, endpoint

    class Answer(Actor):
        @endpoint
        def give(self):
            return None

    procs = mesh.spawn_procs({"gpus": 1})
    procs.spawn("answers", Answer).give.call().get()
    answered_s = time.time()
    procs.stop().get()
    return answered_s


def kubectl(*args: str, text: str = "") -> str:
    done = subprocess.run(
        ["kubectl", *args], input=text, capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        sys.exit(f"kubectl {' '.join(args[:3])}: {done.stderr}")
    return done.stdout


def make_controller(namespace: str, image: str) -> None:
    """Create a pod that may list pods and create meshes, as in Monarch's guide."""
    name = {"name": "controller", "namespace": namespace}
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
        {
            "apiGroups": ["monarch.pytorch.org"],
            "resources": ["monarchmeshes"],
            "verbs": ["get", "list", "watch", "create", "patch", "delete"],
        },
    ]
    api, account = "rbac.authorization.k8s.io", {"kind": "ServiceAccount", **name}
    container = {
        "name": "controller",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "infinity"],
    }
    objects = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": name},
        {"apiVersion": f"{api}/v1", "kind": "Role", "metadata": name, "rules": rules},
        {
            "apiVersion": f"{api}/v1",
            "kind": "RoleBinding",
            "metadata": name,
            "subjects": [account],
            "roleRef": {"apiGroup": api, "kind": "Role", "name": "controller"},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": name,
            "spec": {"serviceAccountName": "controller", "containers": [container]},
        },
    ]
    kubectl(
        "apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    )
    kubectl("wait", "-n", namespace, "--for=condition=Ready", "pod/controller", "--timeout=120s")


class Theirs:
    """Monarch's client in the controller pod: cold at its start, warm on each request."""

    def __init__(self, namespace: str, image: str, name: str) -> None:
        python = ("python3", "-c", THEIRS, namespace, image, name)
        self._process = subprocess.Popen(
            ["kubectl", "exec", "-i", "-n", namespace, "controller", "--", *python],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.cold_s = self._read()

    def measure_warm(self) -> float:
        """Return the seconds until new actors on its hosts have answered."""
        print(file=self._process.stdin, flush=True)
        return self._read()

    def end(self) -> None:
        self._process.communicate("", timeout=60)

    def _read(self) -> float:
        line = self._process.stdout.readline()
        if not line.strip():
            sys.exit("Monarch's own client exited without an answer")
        return float(line)


def run_theirs_cold(namespace: str, image: str, name: str) -> float:
    client = Theirs(namespace, image, name)
    client.end()
    return client.cold_s


def run_ours_cold(options: dict[str, str]) -> float:
    start = time.time()
    return float(wl.run(answer, framework="monarch", nodes=2, quiet=True, **options)) - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--image", default="localhost/monarch:testbed")
    parser.add_argument("--only", default="cold,warm", help="cases (default: cold,warm)")
    args = parser.parse_args()
    namespace = f"meshes-{secrets.token_hex(3)}"
    options = {"engine": "kubernetes", "image": args.image, "namespace": namespace}
    times: dict[str, list[float]] = {}
    kubectl("create", "namespace", namespace)
    try:
        make_controller(namespace, args.image)
        warm = wl.fn(answer).to(wl.Compute(name="warm", **options))
        kept = wl.fn(answer, keep="process").to(wl.Compute(name="kept", **options))
        warm, kept = (fn.distribute("monarch", workers=2) for fn in (warm, kept))
        warm()
        kept()
        theirs = Theirs(namespace, args.image, "kept")
        for number in range(args.rounds):
            sides = {
                "windlass, cold": lambda: run_ours_cold(options),
                "monarch, cold": lambda n=number: run_theirs_cold(
                    namespace, args.image, f"mesh{n}"
                ),
                "windlass, warm, kept process": lambda: -time.time() + float(kept()),
                "windlass, warm, new process": lambda: -time.time() + float(warm()),
                "monarch, warm": theirs.measure_warm,
            }
            chosen = [
                (side, run) for side, run in sides.items() if side.split(", ")[1] in args.only
            ]
            for side, run in chosen[:: 1 if number % 2 else -1]:
                times.setdefault(side, []).append(run())
                print(f"round {number}: {side}: {times[side][-1]:.2f} s", file=sys.stderr)
    finally:
        kubectl("delete", "namespace", namespace, "--wait=false")
    print("| case | windlass | monarch | windlass / monarch |\n|---|--:|--:|--:|")
    for case in ("cold", "warm, kept process", "warm, new process"):
        if f"windlass, {case}" not in times:
            continue
        mine, peers = times[f"windlass, {case}"], times[f"monarch, {case.partition(',')[0]}"]
        ratio = statistics.median(a / b for a, b in zip(mine, peers, strict=True))
        a, b = statistics.median(mine), statistics.median(peers)
        print(f"| {case} | {a:.2f} s | {b:.2f} s | {ratio:.2f}x |")


if __name__ == "__main__":
    main()
