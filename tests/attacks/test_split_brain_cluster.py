"""Split brain and long grace periods with pods. Drops only packets between some pods of one job."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster_shared import make_shared
from waits import wait_for

import windlass as wl
from windlass import names
from windlass.engines.dialects.kubernetes import LABEL_INDEX
from windlass.kube.objects.kinds import JOBS, PODS

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(420)]
RANK = Path(__file__).parent / "noting_rank.py"


def find_pid(uid):
    """Return the PID of a pod's agent, or None if it runs elsewhere or is hidden from this process."""
    needle = f"{names.POD_UID}={uid}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if needle in (entry / "environ").read_bytes().split(b"\0"):
                    return int(entry.name)
    return None


class Cut:
    """Network cut that drops packets between two groups of pods, in the pods' own network namespaces."""

    def __init__(self, one, other):
        self._rules = [
            (find_pid(pod["metadata"]["uid"]), [peer["status"]["podIP"] for peer in peers])
            for pods, peers in ((one, other), (other, one))
            for pod in pods
        ]
        if any(pid is None for pid, _ in self._rules):
            pytest.skip(
                "needs root on the machine of the cluster: packets are dropped inside its pods"
            )

    def __enter__(self):
        for pid, addresses in self._rules:
            peers = "{" + ",".join(addresses) + "}"
            rules = "add table ip severed; add chain ip severed in { type filter hook input priority 0; };"
            rules += " add chain ip severed out { type filter hook output priority 0; };"
            rules += f" add rule ip severed in ip saddr {peers} drop;"
            rules += f" add rule ip severed out ip daddr {peers} drop"
            self._run(pid, rules)
        return self

    def __exit__(self, *_):
        for pid, _ in self._rules:
            with contextlib.suppress(subprocess.CalledProcessError):  # the pod is gone
                self._run(pid, "delete table ip severed")

    def _run(self, pid, rules):
        subprocess.run(["nsenter", "-t", str(pid), "-n", "nft", rules], check=True)


@pytest.fixture
def shared(space, tmp_path, monkeypatch):
    if os.geteuid() != 0 or not shutil.which("nft"):
        pytest.skip("needs root and nft: packets are dropped inside pods")
    for name, value in space.settings.items():
        monkeypatch.setenv(name, value)
    project = tmp_path / "project"
    project.mkdir()
    (project / "windlass.toml").touch()
    shutil.copy(RANK, project / "noting_rank.py")
    monkeypatch.chdir(project)
    yield make_shared(space.files, tmp_path)
    for job in space.api.list(JOBS, labels=names.LABEL_JOB):
        space.api.delete(JOBS, job["metadata"]["name"])
    for pod in space.api.list(PODS, labels=names.LABEL_JOB):
        space.api.delete(PODS, pod["metadata"]["name"], grace_s=0)


def pods_of(space, job):
    found = space.api.list(PODS, labels=f"{names.LABEL_JOB}={job.id}")
    return sorted(found, key=lambda pod: int(pod["metadata"]["labels"][LABEL_INDEX]))


def count(shared, attempt):
    return len([name for name in shared.names() if name.startswith(f"{attempt}-")])


def read_times(shared, attempt):
    notes = [shared.read(name) for name in shared.names() if name.startswith(f"{attempt}-")]
    return sorted(float(line) for note in notes for line in note.split())


def start(shared, num_nodes, **settings):
    job = wl.submit("noting_rank.py", [shared.path], grace_s=300, **settings)
    wait_for(lambda: count(shared, 0) == num_nodes, f"{num_nodes} ranks live", 120)
    return job


def finish(shared, job):
    shared.touch("done")
    assert job.wait(120).phase.value == "succeeded"
    first, second = read_times(shared, 0), read_times(shared, 1)
    assert first[-1] < second[0], f"attempt 0 lived {first[-1] - second[0]:.1f} s into attempt 1"
    assert count(shared, 2) == 0


def test_separated_halves_of_a_job_wait(space, shared):
    job = start(shared, 4, nodes="2:4")
    pods = pods_of(space, job)
    with Cut(pods[:2], pods[2:]):
        is_reported = lambda: "OneWorld" in [c.reason for c in job.status().conditions]  # noqa: E731
        wait_for(is_reported, "the status has the condition", 60)
        half = "only 2 of the 4 nodes of attempt 0 are connected"
        wait_for(
            lambda: half in job.status().conditions[-1].message, "it names the missing nodes", 60
        )
        ref = f"kubernetes://{space.namespace}/{job.id}"
        command = [sys.executable, "-m", "windlass.cli.main", "why", ref]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert half in " ".join(shown.split())
        assert count(shared, 1) == 0
    wait_for(lambda: count(shared, 1) >= 3, "more than half of them continue", 120)
    finish(shared, job)


@pytest.mark.parametrize("index", [1, 0], ids=["follower", "lead"])
def test_isolated_pod_kills_its_ranks_whatever_the_grace(space, shared, index):
    job = start(shared, 2, nodes=2)
    pods = pods_of(space, job)
    with Cut([pods[index]], [pods[1 - index]]):

        def are_dead():  # the ranks' records end minutes before their grace period
            return time.time() - read_times(shared, 0)[-1] > 2.0

        wait_for(are_dead, "the ranks on both sides are dead", 60)
        assert count(shared, 1) == 0
    wait_for(lambda: count(shared, 1) == 2, "they continue together", 120)
    finish(shared, job)
