"""Client without Linux: the Kubernetes engine's client needs nothing that only Linux has.

Clients here run without /proc, /dev/shm, inotify, prctl, SO_PEERCRED, and anything else that macOS lacks.
`not_linux/sitecustomize.py` hides them, and the standard library also sees the platform "darwin".
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from attacks.cluster_ground import working_in
from cli.process import WINDLASS
from cluster_space import Space
from kube.api_server import write_kubeconfig
from kube.fake_cluster import fake_cluster, make_fake_job

WORLD = Path(__file__).parent / "not_linux"

MISSING = """
import ctypes, os, socket, sys
assert sys.platform == "darwin"
for path in ("/proc", "/proc/self/stat", "/dev/shm"):
    assert not os.path.exists(path)
    try:
        open(path)
    except FileNotFoundError:
        pass
assert not hasattr(socket, "SO_PEERCRED")
for name in ("prctl", "inotify_init1"):
    assert not hasattr(ctypes.CDLL(None), name)
"""
# Client packages only. Code that runs in pods, and the torch frameworks, are left out.
IMPORTS = """
import importlib, pkgutil, sys
import windlass
for layer in ("client", "cli", "engines", "kube", "observe", "settings", "bundle", "wire"):
    package = importlib.import_module(f"windlass.{layer}")
    for found in pkgutil.walk_packages(package.__path__, f"windlass.{layer}."):
        importlib.import_module(found.name)
"""
WORK = """
import os, time
import windlass as wl

def rank():
    print("hello from", os.environ["RANK"], flush=True)
    return int(os.environ["RANK"])

def large(size):
    return bytes(size)

if __name__ == "__main__":
    import sys
    assert sys.platform == "darwin"
    assert wl.run("off_linux.py::rank", nodes=2, quiet=True) == [0, 1]
    job = wl.submit("off_linux.py::rank", nodes=2)
    again = wl.attach(str(job.ref))
    assert again.results(timeout_s=120) == [0, 1]
    assert sorted(line.text for line in again.logs()) == ["hello from 0", "hello from 1"]
    compute = wl.Compute(name="off-linux", inactivity_ttl="5m")
    called = wl.fn(rank).to(compute)
    assert called() in (0, [0])
    assert called() in (0, [0])
    assert wl.fn(large).to(compute)(20_000_000) in (bytes(20_000_000), [bytes(20_000_000)])
    called.deploy()
    assert wl.get("rank")() in (0, [0])
    print(job.id)
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch):
    """Return a function that runs a command without Linux features and returns its output."""

    def run(*words: str) -> str:
        environ = {**os.environ, "PYTHONPATH": str(WORLD)}
        done = subprocess.run(
            [str(word) for word in words], env=environ, capture_output=True, text=True, timeout=170
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_linux_features_are_missing(run):
    run(sys.executable, "-c", MISSING)


def test_client_packages_can_be_imported(run):
    run(sys.executable, "-c", IMPORTS)


def test_commands_that_query_a_cluster(run, tmp_path, monkeypatch):
    project = tmp_path / "project"
    project.mkdir()
    (project / "windlass.toml").touch()
    (project / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(project)
    with fake_cluster() as cluster:
        cluster.objects = {"jobs": [make_fake_job("train-ab2cd")]}
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path, server=cluster.url)))
        where = ("-e", "kubernetes")
        exported = run(*WINDLASS, "export", "train.py", *where, "--image", "any:1")
        assert "kind: Job" in exported
        assert "sitecustomize" not in exported, "local modules are not sent"
        run(*WINDLASS, "ls", "--all", *where)
        assert any(seen.path.endswith("/jobs") for seen in cluster.seen), "the cluster was queried"


@pytest.fixture
def ground(space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Space]:
    with working_in(space, tmp_path / "project", monkeypatch) as found:
        yield found


@pytest.mark.cluster
def test_run_submit_attach_logs_results_computes_and_calls(ground, run):
    Path("off_linux.py").write_text(WORK)
    job = run(sys.executable, "off_linux.py").splitlines()[-1]
    assert sorted(run(*WINDLASS, "logs", job).splitlines()) == [
        "[0/0] hello from 0",
        "[1/1] hello from 1",
    ]
    assert json.loads(run(*WINDLASS, "result", job, "--json"))["phase"] == "succeeded"
    assert "succeeded" in run(*WINDLASS, "status", job)
    assert "off-linux" in run(*WINDLASS, "compute", "ls")
    assert "0" in run(*WINDLASS, "call", "rank")
    assert run(*WINDLASS, "compute", "rm", "off-linux").startswith("off-linux-")
    assert "hello from 1" in run(*WINDLASS, "run", "off_linux.py::rank", "--nodes", "2")
