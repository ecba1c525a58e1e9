"""The command of a pod with torchrun, run in a shell: its rank, its rendezvous, and how it exits."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest
from kube.plans import make_pod_plan
from waits import wait_for

from windlass.kube.objects.torchrun_pods import STATE_FOLDER, Rendezvous, TorchrunPods, make_shell

STAYS = "training is finished"


@pytest.fixture
def pod(tmp_path: Path):
    """Return a function that starts the pod's shell with a fake torchrun and a state folder."""
    (tmp_path / "state").mkdir()
    started = []

    def start(
        torchrun: str, *, stays: bool, endpoint: str = "", **env: str
    ) -> subprocess.Popen[str]:
        program = tmp_path / "torchrun"
        program.write_text(f"#!/bin/sh\n{torchrun}\n")
        program.chmod(0o755)
        pods = TorchrunPods(
            name="train",
            service="rdzv",
            labels={},
            index_path="",
            stays=stays,
            rendezvous=Rendezvous(endpoint=endpoint),
        )
        shell = make_shell(make_pod_plan(), pods).replace(STATE_FOLDER, str(tmp_path / "state"))
        world = {"NNODES": "2", "NPROC_PER_NODE": "4", "MASTER_ADDR": "train-0.rdzv"}
        place = {"MASTER_PORT": "29500", "POD_IP": "10.0.0.7", "HOSTNAME": "train-3"}
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        process = subprocess.Popen(
            ["sh", "-c", shell],
            env={**world, **place, "PATH": path, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        # a container ends all its processes when it exits
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=10)
        process.stdout.close()


@pytest.mark.parametrize(
    ("env", "rank", "rendezvous"),
    [
        ({"RANK": "0"}, "0", "endpoint=10.0.0.7:29500 .*is_host=1"),
        ({"RANK": "2"}, "2", "endpoint=train-0.rdzv:29500 .*is_host=0"),
        ({"RANK": ""}, "3", "endpoint=train-0.rdzv:29500 .*is_host=0"),
        ({}, "3", "endpoint=train-0.rdzv:29500 .*is_host=0"),
        ({"RANK": "", "HOSTNAME": "train-0"}, "0", "endpoint=10.0.0.7:29500 .*is_host=1"),
    ],
    ids=str,
)
def test_rank_and_rendezvous_of_a_pod(pod, env, rank, rendezvous):
    process = pod('echo "$RANK $*"', stays=False, **env)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    index, _, words = out.strip().partition(" ")
    assert index == rank
    address, _, conf = rendezvous.partition(" .*")
    assert f"--rdzv-{address} " in words
    assert conf in words
    assert "--nnodes=2 --nproc-per-node=4" in words
    assert words.endswith("train.py --lr 0.1")


def test_given_rendezvous_endpoint(pod):
    out, _ = pod('echo "$*"', stays=False, endpoint="other:1", RANK="0").communicate(timeout=20)
    assert "--rdzv-endpoint=other:1" in out
    assert "is_host" not in out


@pytest.mark.parametrize("stays", [False, True])
def test_exit_code_is_passed_on(pod, stays):
    process = pod("exit 7", stays=stays)
    process.communicate(timeout=20)
    assert process.returncode == 7


def test_finished_pod_stays_until_sigterm(pod, tmp_path):
    process = pod("echo once", stays=True)
    assert process.stdout.readline() == "once\n"
    assert STAYS in process.stdout.readline()
    process.terminate()
    assert process.wait(timeout=20) == 0
    again = pod("echo again", stays=True)
    assert STAYS in again.stdout.readline()  # torchrun was not run again
    again.terminate()
    assert again.wait(timeout=20) == 0


@pytest.mark.parametrize("stays", [False, True])
def test_pod_forwards_signals_and_waits_for_torchrun(pod, tmp_path, stays):
    trapping = f"trap 'echo told; touch {tmp_path}/told; exit 5' TERM\necho up\n"
    process = pod(f"{trapping}while :; do sleep 0.05; done", stays=stays)
    assert process.stdout.readline() == "up\n"
    process.terminate()
    wait_for((tmp_path / "told").exists, "torchrun got SIGTERM", 20)
    assert process.wait(timeout=20) == 5
