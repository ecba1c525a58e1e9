"""Contestants of the Kubernetes benchmark. Each is started, measured and deleted completely.

A contestant's clock runs from the moment before the exec of its command to the stamp of its slowest rank.
Stamps come from the pods' clocks. On one machine all pods share its clock. On other clusters the stamps are
only as exact as the clocks of the nodes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from kubernetes_manifests import make_floor, make_pytorch_job, make_train_job
from kubernetes_place import LIMIT_S, Place, Stamp, read_stamps

from windlass.engines.engine_table import load_dialect
from windlass.kube.objects.fields import name_of
from windlass.kube.objects.kinds import PYTORCH_JOBS, TRAIN_JOBS

HERE = Path(__file__).parent
FIRST, RESTART = "kubernetes_first.py", "kubernetes_restart.py"
KUBERNETES = "kubernetes"
OURS = "windlass"  # name on the engine kubernetes, to which other engines append theirs
_TAIL = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Settings that all contestants share."""

    place: Place
    image: str
    nodes: int
    procs: int
    windlass: Path
    project: Path  # folder with only the scripts, to keep the upload small
    home: Path

    @property
    def num_ranks(self) -> int:
        return self.nodes * self.procs

    def environ(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        env = {**os.environ, "WINDLASS_HOME": str(self.home), **(extra or {})}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # cache byte code, as users do
        return env


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measured time, with the stamps of the ranks."""

    seconds: float
    began_s: float
    stamps: list[Stamp] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A name, and the function that measures one run."""

    name: str
    measure: Callable[[Setup], Sample]


def make_project(folder: Path) -> None:
    """Fill a project folder with only the two scripts."""
    for name in (FIRST, RESTART):
        shutil.copy(HERE / name, folder / name)


# -- windlass ------------------------------------------------------------------------------------


def name_ours(engine: str) -> str:
    """Return the name of the contestant that is Windlass on this engine."""
    return OURS if engine == KUBERNETES else f"{OURS} -e {engine}"


def run_args(setup: Setup, script: str, *flags: str, engine: str = KUBERNETES) -> list[str]:
    """Return the arguments of `windlass`, starting with `run`."""
    size = ("--nodes", str(setup.nodes), "--procs", str(setup.procs), "--spread", "hard")
    where = ("-e", engine, "--image", setup.image, "--namespace", setup.place.namespace)
    return ["run", script, *size, *where, *flags]


def run_windlass(
    setup: Setup,
    command: list[str],
    *,
    engine: str = KUBERNETES,
    env: Mapping[str, str] | None = None,
) -> tuple[float, list[Stamp], str]:
    """Run a command to its end. Return its start time, its ranks' stamps and the job's name."""
    began_s = time.time()
    output = _finish(setup, command, env)
    kind = load_dialect(engine).kind
    job = name_of(setup.place.api.list(kind)[0])
    setup.place.check_spread(name_ours(engine), setup.nodes)
    return began_s, read_stamps(output), job


def _finish(setup: Setup, command: list[str], env: Mapping[str, str] | None = None) -> str:
    """Return the output of a command. Exit if it fails or times out."""
    try:
        done = subprocess.run(
            command, cwd=setup.project, env=setup.environ(env), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise SystemExit(
            f"kubernetes: command did not end within {LIMIT_S:g} s: {' '.join(command)}"
        ) from None
    if done.returncode != 0:
        sys.stderr.write((done.stdout + done.stderr)[-_TAIL:])
        raise SystemExit(f"kubernetes: exit code {done.returncode}: {' '.join(command)}")
    return done.stdout


def remove_windlass(setup: Setup, job: str, *, engine: str = KUBERNETES) -> None:
    """Remove a job with `windlass rm`, and wait until nothing of it remains."""
    _finish(setup, [str(setup.windlass), "rm", f"{engine}://{setup.place.namespace}/{job}"])
    setup.place.wait_empty(name_ours(engine))


def measure_windlass(setup: Setup, *, engine: str = KUBERNETES) -> Sample:
    """Measure from the exec of `windlass run` until every rank has finished its first all-reduce."""
    args = run_args(setup, FIRST, engine=engine)
    began_s, stamps, job = run_windlass(setup, [str(setup.windlass), *args], engine=engine)
    remove_windlass(setup, job, engine=engine)
    return make_sample(name_ours(engine), began_s, stamps, num=setup.num_ranks)


def measure_restart(setup: Setup) -> Sample:
    """Measure from SIGKILL of the last rank until every rank steps in the next attempt."""
    args = run_args(setup, RESTART, "--restarts", "1")
    _, stamps, job = run_windlass(setup, [str(setup.windlass), *args])
    remove_windlass(setup, job)
    killed = [stamp["killed"] for stamp in stamps if "killed" in stamp]
    again = [s for s in stamps if s["attempt"] == 1 and "stepped" in s]
    if len(killed) != 1 or len(again) != setup.num_ranks:
        raise SystemExit(f"kubernetes: {len(killed)} killed, {len(again)} stepped again: {stamps}")
    seconds = max(stamp["stepped"] for stamp in again) - killed[0]
    return Sample(seconds=seconds, began_s=killed[0], stamps=again)


# -- the other contestants -----------------------------------------------------------------------


def apply(setup: Setup, manifest: str) -> float:
    """Run `kubectl apply -f -`, and return when it began."""
    command = ["kubectl", "apply", "--namespace", setup.place.namespace, "-f", "-"]
    if setup.place.api.context:
        command[1:1] = ["--context", setup.place.api.context]
    began_s = time.time()
    done = subprocess.run(
        command, input=manifest, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"kubernetes: kubectl apply: {done.stderr[-_TAIL:]}")
    return began_s


def measure_applied(setup: Setup, name: str, manifest: str, *, num: int) -> Sample:
    """Measure from the exec of `kubectl apply` to the last rank's stamp."""
    began_s = apply(setup, manifest)
    stamps = setup.place.wait_stamps(num, contestant=name)
    setup.place.check_spread(name, setup.nodes)
    setup.place.clear()
    setup.place.wait_empty(name)
    return make_sample(name, began_s, stamps, num=num)


def make_sample(name: str, began_s: float, stamps: list[Stamp], *, num: int) -> Sample:
    """Return the time until the slowest rank was done. Exit unless every rank has one stamp."""
    if sorted(stamp["rank"] for stamp in stamps) != list(range(num)):
        raise SystemExit(f"kubernetes: {name}: expected ranks 0..{num - 1}, got {stamps}")
    seconds = max(stamp["reduced"] for stamp in stamps) - began_s
    return Sample(seconds=seconds, began_s=began_s, stamps=stamps)


def export_stateful_set(setup: Setup) -> str:
    """Export the StatefulSet with emptyDir volumes, so that no claim adds to the measured time."""
    args = run_args(setup, FIRST, "--volume", "emptydir:/data", "--volume", "emptydir:/out")
    args[args.index("kubernetes")] = "statefulset"
    return _finish(setup, [str(setup.windlass), "export", *args[1:]])


def make_contestants(setup: Setup) -> dict[str, Contestant | None]:
    """Return all contestants by key, with None for those that this cluster does not support."""
    floor = json.dumps(make_floor("floor", image=setup.image, nodes=setup.nodes))
    recipe = export_stateful_set(setup)
    script = (setup.project / FIRST).read_text()
    job: dict[str, Any] = {
        "image": setup.image,
        "script": script,
        "nodes": setup.nodes,
        "procs": setup.procs,
    }
    train = json.dumps(make_train_job("train", **job))
    pytorch = json.dumps(make_pytorch_job("pytorch", **job))
    num = setup.num_ranks
    has_trainer = setup.place.serves(TRAIN_JOBS)
    has_training_operator = setup.place.serves(PYTORCH_JOBS)
    return {
        OURS: _ours(KUBERNETES),
        name_ours("trainjob"): _ours("trainjob") if has_trainer else None,
        name_ours("pytorchjob"): _ours("pytorchjob") if has_training_operator else None,
        "statefulset": _applied("StatefulSet", recipe, num=num),
        "trainjob": _applied("TrainJob", train, num=num) if has_trainer else None,
        "pytorchjob": _applied("PyTorchJob", pytorch, num=num) if has_training_operator else None,
        "floor": _applied("floor", floor, num=setup.nodes),
    }


def _ours(engine: str) -> Contestant:
    return Contestant(name=name_ours(engine), measure=partial(measure_windlass, engine=engine))


def _applied(name: str, manifest: str, *, num: int) -> Contestant:
    def measure(setup: Setup) -> Sample:
        return measure_applied(setup, name, manifest, num=num)

    return Contestant(name=name, measure=measure)
