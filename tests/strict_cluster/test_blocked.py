"""Obstacles to the start of a job are reported within 20 s. Cancelling then leaves nothing behind."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from strict_cluster.conftest import Become
from strict_cluster.ground import Ground, wait_for

import windlass as wl
from windlass import names
from windlass.kube.diagnosis import blocker as reasons
from windlass.kube.objects.kinds import PODS
from windlass.observe.explain import explain
from windlass.wire.status import Condition

pytestmark = pytest.mark.cluster

SOON_S = 60.0

# Settings, the reason for programs, and the sentence for people.
BLOCKED: dict[str, tuple[dict[str, Any], str, str]] = {
    "quota": (
        {"nodes": 4, "memory": "3Gi"},
        reasons.QUOTA,
        r'quota "team" leaves too little: a pod requests 3Gi limits.memory, .* of 8Gi are used',
    ),
    "limit range": (
        {"cpus": "3"},
        reasons.DENIED,
        r"LimitRange .*maximum cpu usage per Container is 2, but limit is 3",
    ),
    "pod security": (
        {"patch": {"spec": {"hostNetwork": True}}},
        reasons.POD_SECURITY,
        r'Pod Security level "restricted(:latest)?" forbids .*host namespaces',
    ),
    "service account": (
        {"service_account": "absent"},
        reasons.SERVICE_ACCOUNT,
        r'service account "absent" not found',
    ),
    "secret as variables": (
        {"secrets": ["absent"]},
        reasons.CONTAINER_CONFIG,
        r'secret "absent" not found',
    ),
    "secret as files": (
        {"secrets": ["absent:/folder"]},
        reasons.MOUNT,
        r'secret "absent" not found',
    ),
    "claim": ({"volumes": ["absent:/data"]}, reasons.VOLUME, r"absent"),
    "gpus": (
        {"gpus": 4096},
        reasons.UNSCHEDULABLE,
        r"each pod requests 4096 nvidia.com/gpu, but \d+ of \d+ nodes do not have enough nvidia.com/gpu",
    ),
    "image": ({"image": "localhost/absent:1"}, reasons.IMAGE_PULL, r"localhost/absent:1"),
    "image's name": (
        {"image": "localhost/Not-A-Name"},
        reasons.IMAGE_NAME,
        r"localhost/Not-A-Name",
    ),
}


@pytest.mark.parametrize("what", BLOCKED)
def test_blocker_is_named_and_cancel_leaves_nothing(strict: Ground, what: str) -> None:
    settings, reason, words = BLOCKED[what]
    job = wl.submit(["true"], **settings)
    wait_for(lambda: reason in {c.reason for c in _blockers(job)}, f"{reason} is named", SOON_S)
    found = explain(job.status(), now_s=time.time())
    assert (found.reason, found.phase in ("pending", "starting")) == (reason, True)
    assert re.search(words, found.sentence), found.sentence
    assert found.next, "something to do about it"
    job.cancel(why="it will never start")
    status = job.wait(50)  # four attempts take more than a minute
    assert (status.phase.value, status.verdict.message) == ("cancelled", "it will never start")
    strict.wait_for_nothing(job.id)


def _blockers(job: wl.Job) -> list[Condition]:
    return [one for one in job.status().conditions if one.type == reasons.CONDITION]


def test_why_prints_the_blocker(strict: Ground) -> None:
    job = wl.submit(["true"], service_account="absent")
    wait_for(lambda: bool(_blockers(job)), "a blocker is named", SOON_S)
    command = [sys.executable, "-m", "windlass.cli.main", "why", str(job.ref)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert 'service account "absent" not found' in ran.stdout.splitlines()[0]
    assert "next: correct --service-account" in ran.stdout
    with pytest.raises(wl.SpecError, match=f"{job.id} is still pending"):
        job.remove()


def test_immediate_refusals_are_errors_of_submit(strict: Ground, become: Become) -> None:
    with pytest.raises(wl.EngineError, match="restartPolicy") as caught:
        wl.submit(["true"], patch={"spec": {"restartPolicy": "Always"}})
    assert caught.value.hint
    strict.wait_for_nothing()
    with pytest.raises(wl.EngineError, match="and 13 more things a job needs") as caught:
        wl.submit(["true"], namespace="not-made-yet")
    assert "is not-made-yet the right --namespace?" in caught.value.hint
    become(strict, None)
    with pytest.raises(wl.EngineError, match="namespace not-made-yet not found"):
        wl.submit(["true"], namespace="not-made-yet")


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_missing_interpreter_fails_the_job_early(
    strict: Ground, num_nodes: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Kubernetes needs more than a minute for four attempts, but the first one shows the cause."""
    job = wl.submit(["true"], nodes=num_nodes, python="python9")
    status = job.wait(50)  # four attempts take more than a minute
    assert (status.phase.value, status.verdict.kind.value) == ("failed", "start failed")
    assert f'the image {strict.image} has no "python9"' in status.verdict.message
    assert "--python" in status.verdict.next
    monkeypatch.setenv("WINDLASS_HOME", str(tmp_path / "elsewhere"))
    later = wl.attach(str(job.ref)).wait(60)
    assert f'the image {strict.image} has no "python9"' in later.verdict.message
    assert len(strict.api.list(PODS, labels=f"{names.LABEL_JOB}={job.id}")) <= 2 * num_nodes
