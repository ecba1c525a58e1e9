"""Ray on the nodes of a compute and of concurrent jobs: one value, one cluster for all calls, losses.

Skipped if Ray is not installed. Starting Ray takes seconds, so the tests share one compute.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from kept_files import files_with
from ray_tasks import look, run_ray_job, use_until_killed
from waits import find_leftovers, wait_for

import windlass as kt
from windlass.waiting import wait_until

pytest.importorskip("ray", reason="Ray is not installed: pip install 'ray[default]'")
pytestmark = [pytest.mark.local_only, pytest.mark.timeout(600)]

WORKER = {"gpus": 1, "cpus": "1", "memory": "1Gi"}


@pytest.fixture(scope="module")
def compute(on):
    compute = on.make(
        cpus="1", memory="1Gi", image=kt.images.Ray("2.32.0-py311"), pretend_gpus=True
    )
    yield compute
    on.clean()


def distribute(compute: kt.Compute, function: Any) -> kt.Remote:
    remote = kt.fn(function).to(compute)
    return remote.distribute(framework="ray", workers=1, worker_node_options=WORKER)


def find_ray_processes(home: Path, name: str, address: str = "") -> list[int]:
    """Return the PIDs of Ray's processes of that name, optionally only of the node at an address."""
    lines = [line for line in find_leftovers(home) if name in line.split(" ", 2)[1]]
    at = f"--node_ip_address={address}" if address else ""
    return [int(line.partition(":")[0]) for line in lines if at in line]


@pytest.mark.long
def test_snippet_of_the_guide(compute):
    """Fewer tasks than in the guide, because Ray starts a process for each that uses a GPU."""
    assert distribute(compute, run_ray_job)(6) == [f"Task {i} on GPU" for i in range(6)]


def test_calls_share_a_cluster_and_its_token_stays_secret(compute, home):
    first, second = distribute(compute, look)(), distribute(compute, look)()
    assert first == second
    assert first["rank"] == ("0", "1")
    assert first["gpus"] == {"127.0.0.2": 0, "127.0.0.3": 1}
    assert len(first["token"]) == 64
    assert find_ray_processes(home, "raylet") != []
    assert not any(first["token"] in line for line in find_leftovers(home))
    assert files_with(home, first["token"]) == []
    status = kt.attach(str(compute.nodes().ref)).status()
    assert "node 1 pretends to have 1 GPU" in [c.message for c in status.conditions]


def test_dashboard_is_at_the_port_that_port_forward_prints(compute):
    distribute(compute, look)()
    # the dashboard starts seconds after the cluster, and gets the remaining CPU time of the machine
    wait_for(lambda: is_healthy(find_page(compute.name)), "the dashboard answers", 240.0)


def find_page(name: str) -> str:
    shown = subprocess.run(
        [sys.executable, "-m", "windlass.cli.main", "port-forward", name, "8265"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    return shown.stdout.strip()


def is_healthy(page: str) -> bool:
    if not page.startswith("127.0.0.1:"):
        return False
    try:
        with urllib.request.urlopen(f"http://{page}/api/gcs_healthz", timeout=30) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.long
def test_job_beside_a_compute_has_its_own_cluster(compute):
    mine = distribute(compute, look)()
    theirs = kt.run(look, framework="ray", nodes=2, gpus=2, pretend_gpus=True, cpus=1, quiet=True)
    assert theirs["gpus"] == {"127.0.0.2": 2, "127.0.0.3": 2}
    assert theirs["address"] != mine["address"]
    assert theirs["token"] != mine["token"]


@pytest.mark.long
def test_lost_worker_is_reported_and_replaced(compute, home):
    remote = distribute(compute, look)
    remote()
    [raylet] = find_ray_processes(home, "raylet", "127.0.0.3")
    os.kill(raylet, signal.SIGKILL)
    status = kt.attach(str(compute.nodes().ref)).status
    wait_for(
        lambda: "ClusterNodeLost" in [c.reason for c in status().conditions], "the loss is reported"
    )
    wait_for(
        lambda: find_ray_processes(home, "raylet", "127.0.0.3") not in ([], [raylet]),
        "a new raylet",
    )
    wait_for(lambda: remote()["gpus"] == {"127.0.0.2": 0, "127.0.0.3": 1}, "the worker has joined")


@pytest.mark.long
def test_lost_head_fails_the_call_and_is_replaced(compute, home, tmp_path):
    before = distribute(compute, look)()
    call = distribute(compute, use_until_killed).submit(str(tmp_path / "flag"))
    wait_for((tmp_path / "flag").exists, "it runs")
    [head] = find_ray_processes(home, "gcs_server")
    os.kill(head, signal.SIGKILL)
    verdict = call.wait(60).verdict
    assert (verdict.kind.value, verdict.node) == ("lost node", 0)
    assert verdict.message.startswith("Ray's head on ")
    after = distribute(compute, look)()
    assert after["address"] != before["address"]
    assert after["gpus"] == before["gpus"]


@pytest.mark.long
def test_missing_gpus_are_an_error_before_the_function_runs(make, tmp_path):
    here = make(cpus="1")
    remote = (
        kt.fn(use_until_killed)
        .to(here)
        .distribute(framework="ray", workers=1, worker_node_options={"gpus": 99})
    )
    with pytest.raises(kt.WindlassError, match=r"node 1 needs 99 GPUs"):
        remote(str(tmp_path / "flag"))
    assert not (tmp_path / "flag").exists()


class RayJob:
    """Job whose function uses its cluster until it is killed, with the processes of its Ray."""

    def __init__(self, home: Path, flag: Path) -> None:
        self._home = home
        self.job = kt.submit(
            *(use_until_killed, (str(flag),)),
            framework="ray",
            nodes=2,
            cpus=1,
            grace_s=1,
            node_restarts=0,  # otherwise a lost head starts the next attempt
        )

    def find(self, name: str = "", address: str = "") -> list[int]:
        return [pid for pid in find_ray_processes(self._home, name, address) if self._is_own(pid)]

    def _is_own(self, pid: int) -> bool:
        """Return whether a process belongs to this job.

        The module's compute also runs Ray, which may start a process at any time.
        """
        try:
            about = [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("environ", "cmdline")]
        except OSError:
            return False
        return any(self.job.id.encode() in text for text in about)

    def check_all_processes_have_exited(self) -> None:
        wait_until(lambda: self.find() == [], timeout_s=60.0)
        left = [f"{pid}:" for pid in self.find()]
        assert [line for line in find_leftovers(self._home) if line.startswith(tuple(left))] == []


@pytest.fixture
def ray_job(home, tmp_path):
    made = RayJob(home, tmp_path / "flag")
    try:
        wait_for((tmp_path / "flag").exists, "it runs", 300.0)
        yield made
    finally:
        made.job.cancel(now=True)
        made.job.wait(120)


@pytest.mark.long
@pytest.mark.parametrize("index", [0, 1])
def test_ray_processes_die_with_a_killed_agent(ray_job, index):
    job = ray_job.job
    [raylet] = ray_job.find("raylet", f"127.0.0.{2 + index}")
    os.kill(job.status().nodes[index].pid, signal.SIGKILL)
    wait_for(lambda: raylet not in ray_job.find("raylet"), "its raylet has exited", 60.0)
    if index:
        assert job.status().phase.value == "running"  # Ray continues without a worker
        job.cancel()
    job.wait(120)
    ray_job.check_all_processes_have_exited()


@pytest.mark.long
@pytest.mark.parametrize(("name", "address"), [("gcs_server", ""), ("raylet", "127.0.0.2")])
def test_killed_head_ends_the_attempt_and_all_ray_processes(ray_job, name, address):
    [head] = ray_job.find(name, address)
    os.kill(head, signal.SIGKILL)
    status = ray_job.job.wait(120)
    assert status.phase.value == "failed"
    assert (status.verdict.kind.value, status.verdict.node) == ("lost node", 0)
    assert status.verdict.message.startswith("Ray's head on ")
    ray_job.check_all_processes_have_exited()


@pytest.mark.long
def test_killed_worker_is_replaced_and_ends_with_the_job(ray_job):
    [raylet] = ray_job.find("raylet", "127.0.0.3")
    os.kill(raylet, signal.SIGKILL)
    wait_for(
        lambda: ray_job.find("raylet", "127.0.0.3") not in ([], [raylet]), "a new raylet", 120.0
    )
    job = ray_job.job
    assert job.status().phase.value == "running"
    assert "ClusterNodeLost" in [c.reason for c in job.status().conditions]
    job.cancel()
    job.wait(120)
    ray_job.check_all_processes_have_exited()
